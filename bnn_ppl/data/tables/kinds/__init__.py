"""Kinds of columns of a table, a file each: what they are, and how their cells become numbers."""
