"""Who may send requests, and how many: API keys, the file they are in, rate limits."""
