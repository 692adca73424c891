"""What draws say: predictions, scores, diagnostics, comparisons."""
