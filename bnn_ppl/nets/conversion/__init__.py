"""Networks of other libraries, and trained weights from files."""
