"""Prompts' chunks over latents: as they are, and decompressed."""
