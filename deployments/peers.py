"""How many gateways there are, as each of them knows it without asking anybody."""

from __future__ import annotations


class Peers:
    """Written by the router's thread, read by the event loop's."""

    def __init__(self) -> None:
        self.num_running = 0


_process_peers = Peers()


def process_peers() -> Peers:
    """What this process's handle to the gateways keeps up to date."""
    return _process_peers
