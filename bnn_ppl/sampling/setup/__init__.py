"""Where chains start, and what is checked before."""
