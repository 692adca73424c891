"""Batch normalisation and its statistics."""
