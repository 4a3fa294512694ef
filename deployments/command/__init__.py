"""The command line, ``pomona``: a file or folder for each subcommand.

Start reading at ``__main__.py``, which finds the subcommand and imports it alone.
"""
