"""Figures of the weights."""
