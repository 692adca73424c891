"""The draws of a run on disk, as Zarr."""
