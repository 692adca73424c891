"""Distributions fitted by variational inference."""
