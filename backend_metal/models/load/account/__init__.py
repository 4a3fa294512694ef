"""Account for every key of a config.json: it is used, irrelevant, or refused.

mlx-lm's classes leave out what they don't know, without a word. ``config.normalized`` spells a
config as they read it. After mlx-lm has built the network, ``network.settle`` holds its windows and
rotary embeddings to the config, puts right what differs, and tells the context that it then has.
``keys`` accounts for all other keys by ``families.json``, and ``sizes`` refuses absurd ones before
anything is built. Start reading at ``network``.
"""
