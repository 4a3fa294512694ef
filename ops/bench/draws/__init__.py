"""Draws of tokens: by kernels, and as a graph."""
