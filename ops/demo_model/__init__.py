"""The small chat model that ``configs/app.yaml`` serves: its text, tokenizer and training.

``knowledge/*.toml`` says what the model knows and how people ask for it. ``grammar`` expands the
patterns in there, ``intents``, ``skills`` and ``writing`` turn them into exchanges of a question
and an answer, ``phrasing`` disguises the questions, and ``corpus`` makes conversations of them.
``tokenizer`` learns the vocabulary, ``train`` the weights, and ``evaluate`` asks questions that
the training text does not hold. Start reading at ``corpus``.
"""
