"""The Laplace approximation and the curvature it takes."""
