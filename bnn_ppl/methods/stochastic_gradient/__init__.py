"""Samplers by gradients on minibatches."""
