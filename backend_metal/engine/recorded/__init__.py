"""Decode steps that the device records once and then launches whole."""
