"""Devices and processes, and machines that are not here."""
