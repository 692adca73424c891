"""Runs beside each other: scores with errors, tables."""
