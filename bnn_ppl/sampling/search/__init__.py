"""Searches for what a run leaves open: the scale of the prior, the layers and the noise."""
