"""How models write tool calls and thoughts: the forms, and what reads them in a stream.

Knows neither HTTP nor a tokenizer. Start reading at ``events.py``, then ``reader.py``.
"""
