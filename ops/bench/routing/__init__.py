"""Simulated fleets under the shipped routers."""
