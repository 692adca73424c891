"""Training: learning rates, held-out rows, when it ends."""
