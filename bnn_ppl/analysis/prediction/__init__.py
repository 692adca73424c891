"""Predictions of draws: averages, quantiles, each draw's own, closed forms."""
