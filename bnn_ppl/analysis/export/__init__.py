"""A folder that predicts without this package: :func:`bnn_ppl.export`."""
