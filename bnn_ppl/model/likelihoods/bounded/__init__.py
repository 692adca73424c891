"""Likelihoods of shares and of classes."""
