"""Access control: who may send requests, and how many; API keys, their file, rate limits."""
