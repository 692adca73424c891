"""Layers and convolutions that networks share."""
