"""Samplers by way of tempered posteriors."""
