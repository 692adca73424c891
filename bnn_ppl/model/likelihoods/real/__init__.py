"""Likelihoods of any real number, standardised."""
