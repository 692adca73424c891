"""Which inputs matter, how, and for whom: :func:`bnn_ppl.explain`."""
