"""The rows of a posterior: checked, labelled, streamed, as features."""
