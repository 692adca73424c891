"""Layers of a network as methods see them: their calls and the gradients of single rows."""
