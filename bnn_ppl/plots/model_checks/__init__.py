"""Figures that judge models on the rows they were trained on."""
