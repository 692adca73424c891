"""Searches for what a run leaves open: the scale of the prior, the widths of hidden layers."""
