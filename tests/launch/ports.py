"""Ports for commands that are told their port before they listen.

They lie below those that the system gives out by itself: a port found by binding 0 and closing it may be given to
another test, as the end of some connection, before the command listens.
"""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import closing
from pathlib import Path

NUM_PORTS = 12_000
_GIVEN_OUT = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
_END = _GIVEN_OUT if _GIVEN_OUT > NUM_PORTS + 1024 else 32_768  # a system may give out nearly all
_candidates = itertools.count(os.getpid() * 101)  # processes that test at the same time begin at different ports


def free_ports(number: int) -> list[int]:
    """Return ports on which nothing listens, and which this process has not returned before."""
    ports = (_END - 1 - candidate % NUM_PORTS for candidate in _candidates)
    return list(itertools.islice((port for port in ports if _is_free(port)), number))


def free_port() -> int:
    return free_ports(1)[0]


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as asked:
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            asked.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
