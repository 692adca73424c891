"""What a predictive distribution says beside its moments: probabilities of values, and scores."""
