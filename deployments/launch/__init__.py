"""Starting the server from a terminal: checks a config, runs Serve with it, says when it is ready.

Start reading at ``launcher.py``; ``pomona serve`` in ``deployments/command`` is what calls it.
"""
