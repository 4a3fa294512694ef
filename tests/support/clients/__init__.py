"""What clients of other people are tried against."""
