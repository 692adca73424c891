"""Whether chains agree: R-hat, effective draws, evidence and their errors."""
