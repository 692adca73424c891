"""What draws say of the weights: statistics, pruning, symmetries, the loss surface."""
