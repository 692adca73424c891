"""The commands, those of one subject in a file."""
