"""Runs inside a command: what of the network can be reached.

``network.py PORT`` prints JSON: the interfaces, and for each attempt ``done`` or the
name of the error. *PORT* is one that a test listens on, on the host's loopback.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
from collections.abc import Callable

PORT = int(sys.argv[1])
DOCUMENTATION = "192.0.2.1"
"""An address that is nobody's. Source: RFC 5737."""


def connect(family: int, kind: int, address: tuple[str, int] | str) -> None:
    """Connect a socket and say a word."""
    with socket.socket(family, kind) as attempt:
        attempt.settimeout(0.5)
        attempt.connect(address)
        attempt.send(b"x")


def round_trip() -> None:
    """Listen on the loopback and connect to ourselves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connect(socket.AF_INET, socket.SOCK_STREAM, listener.getsockname())


ATTEMPTS: dict[str, Callable[[], object]] = {
    "own loopback": round_trip,
    "host's loopback": lambda: connect(
        socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", PORT)
    ),
    "host's loopback, UDP": lambda: connect(
        socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", PORT)
    ),
    "beyond": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, (DOCUMENTATION, 80)),
    "beyond, UDP": lambda: connect(
        socket.AF_INET, socket.SOCK_DGRAM, (DOCUMENTATION, 53)
    ),
    "host's abstract socket": lambda: connect(
        socket.AF_UNIX, socket.SOCK_STREAM, f"\0bashd-canary-{PORT}"
    ),
}


def main() -> None:
    """Try everything."""
    found: dict[str, object] = {}
    for name, attempt in ATTEMPTS.items():
        try:
            attempt()
            found[name] = "done"
        except TimeoutError:
            found[name] = "timeout"
        except OSError as error:
            found[name] = errno.errorcode[error.errno or 0]
    found["interfaces"] = [name for _, name in socket.if_nameindex()]
    print(json.dumps(found))


main()
