"""A NumPyro model with a random network, conditioned on data."""
