"""Whether a model and a method can be trusted: by simulation, predictions and sensitivity."""
