"""Host metrics: memory, swap, pressure, heat, GPU. No root needed.

``linux.py`` and ``macos.py`` read what their platform tells; what it doesn't tell is absent, never
zero. ``collector.py`` shows it among a replica's metrics. Start reading there.
"""
