"""Metrics, logs, traces and the readings of the host, for gateways and replicas alike."""
