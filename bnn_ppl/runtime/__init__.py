"""Devices, progress bars, and checks of what callers pass."""
