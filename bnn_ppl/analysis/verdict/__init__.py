"""The verdict on a run: what is wrong, and what helps."""
