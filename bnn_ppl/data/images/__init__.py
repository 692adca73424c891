"""Images: sets that are published, and folders of files."""
