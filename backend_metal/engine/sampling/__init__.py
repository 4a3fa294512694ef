"""Drawing tokens from logits, for a batch of sequences with options of their own, on the device."""
