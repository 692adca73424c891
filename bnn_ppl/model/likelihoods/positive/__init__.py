"""Likelihoods of numbers above 0, such as amounts and times."""
