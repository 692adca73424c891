"""Rows read as they are needed."""
