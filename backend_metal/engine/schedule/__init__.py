"""What runs in a step: sequences, their blocks, and the choice between them.

Start reading at ``scheduler.py``.
"""
