"""Draws and the state of a run, in memory and on disk."""
