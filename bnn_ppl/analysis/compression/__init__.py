"""Fewer draws for the same predictions: :func:`bnn_ppl.compress`."""
