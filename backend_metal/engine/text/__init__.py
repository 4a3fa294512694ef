"""Text to tokens and back: prompts, incremental detokenization, stop strings."""
