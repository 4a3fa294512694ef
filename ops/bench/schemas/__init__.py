"""Whether answers are held to their schemas, by MaskBench's schemas and instances."""
