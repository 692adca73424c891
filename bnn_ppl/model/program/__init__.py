"""NumPyro programs of any kind, made into what a posterior is made of."""
