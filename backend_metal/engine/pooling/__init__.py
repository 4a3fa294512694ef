"""What is made of a prompt that nothing is generated for: a vector or a score."""
