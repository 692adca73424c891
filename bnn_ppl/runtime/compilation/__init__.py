"""Programs: traced, compiled, found again, read."""
