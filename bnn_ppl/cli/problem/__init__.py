"""The options of a problem: data, network and prior, and the posterior they make."""
