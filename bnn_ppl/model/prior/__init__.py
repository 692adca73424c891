"""Priors of weights."""
