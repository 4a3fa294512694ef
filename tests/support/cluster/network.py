"""A network of this machine's own making: one switch, and hosts with an address each.

It lives in a network namespace that the calling thread enters, so that what this process asks
comes from a client's place. Nothing has a name outside: all of it ends with the processes in it.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import time
from types import TracebackType
from typing import Self

CLONE_NEWNET = 0x40000000
SUBNET = "10.77.0"
CLIENT_ADDRESS = f"{SUBNET}.1"
SWITCH = "switch"
UNPLUG_TIMEOUT_S = 60.0

_libc = ctypes.CDLL(None, use_errno=True)


class Network:
    """Entered by the main thread; threads and processes that it starts meanwhile are inside."""

    def __init__(self) -> None:
        self._outside: int | None = None

    def __enter__(self) -> Self:
        self._outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        _check(_libc.unshare(CLONE_NEWNET))
        _ip("link set lo up")
        _ip(f"link add {SWITCH} type bridge")
        _ip(f"address add {CLIENT_ADDRESS}/24 dev {SWITCH}")
        _ip(f"link set {SWITCH} up")
        _nft("add table bridge losses")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._outside is not None
        _check(_libc.setns(self._outside, CLONE_NEWNET))
        os.close(self._outside)

    def plug(self, host: str, number: int, pid: int) -> str:
        """A cable from the switch to the namespace of ``pid``. Returns the host's address."""
        address = address_of(number)
        self._wait_until_unplugged(host)
        # A host that comes back has the card that its neighbours know.
        card = f"address 02:00:00:00:00:{number:02x}"
        _ip(f"link add {port_of(host)} type veth peer name eth0 {card} netns {pid}")
        _ip(f"link set {port_of(host)} master {SWITCH} up")
        inside = ("nsenter", f"--target={pid}", "--net")
        _ip("link set lo up", inside)
        _ip(f"address add {address}/24 dev eth0", inside)
        _ip("link set eth0 up", inside)
        return address

    def _wait_until_unplugged(self, host: str) -> None:
        """A host that was killed has its cable for a while: the kernel takes its time to clear a
        namespace that nobody is left in."""
        deadline = time.monotonic() + UNPLUG_TIMEOUT_S
        while port_of(host) in {name for _, name in socket.if_nameindex()}:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{host} still has its cable")
            time.sleep(0.01)

    def cut(self, host: str) -> None:
        """Pull the cable: packets are lost in silence."""
        _ip(f"link set {port_of(host)} down")

    def heal(self, host: str) -> None:
        _ip(f"link set {port_of(host)} up")

    def lose_packets(self, host: str, percent: int) -> None:
        """So many of those to and from ``host``, by chance, until ``lose_none``."""
        for hook, port in (("prerouting", "iifname"), ("postrouting", "oifname")):
            chain = f"bridge losses {hook}"
            _nft(f"add chain {chain} {{ type filter hook {hook} priority 0; }}")
            _nft(f"add rule {chain} {port} {port_of(host)} numgen random mod 100 < {percent} drop")

    def lose_none(self) -> None:
        _nft("flush table bridge losses")


def address_of(number: int) -> str:
    return f"{SUBNET}.{number}"


def port_of(host: str) -> str:
    return f"to-{host}"


def _ip(arguments: str, inside: tuple[str, ...] = ()) -> None:
    subprocess.run([*inside, "ip", *arguments.split()], check=True)


def _nft(command: str) -> None:
    subprocess.run(["nft", command], check=True)


def _check(result: int) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
