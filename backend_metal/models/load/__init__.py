"""Loads a checkpoint: finds or downloads it, checks every key of its config, reads its tensors and
converts its weights for the device. Start at ``loader.load``."""
