"""The compiled loop of a run, and the batches of its steps."""
