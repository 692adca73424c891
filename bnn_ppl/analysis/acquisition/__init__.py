"""Which rows to label, or to try, next."""
