"""Turns a request into the engine's sequences: the queue, tokenization, grammar compilation.
``intake.Intake`` makes the sequences."""
