"""A request on its way to the engine's sequences: it waits, its prompt becomes token ids, and its
grammar is compiled. ``intake.Intake`` makes the sequences."""
