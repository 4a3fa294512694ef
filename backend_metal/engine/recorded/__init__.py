"""Decode steps that are made once and then repeated: recorded by the device and launched whole, or
as graphs of arrays."""
