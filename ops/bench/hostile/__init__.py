"""Clients that mean harm, and what the others notice of them."""
