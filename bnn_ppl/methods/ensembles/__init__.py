"""Ensembles of trained points, and Gaussians about their paths."""
