"""Answers of a model with random weights that are held to JSON schemas, disturbed in the middle."""
