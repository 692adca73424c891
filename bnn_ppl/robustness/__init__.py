"""Predictions away from the training data: corruptions, shift, attacks."""
