"""Clients of other people, as they come, against a real `serve run`: `make test-clients`."""
