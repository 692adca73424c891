"""Samplers by gradients on all rows."""
