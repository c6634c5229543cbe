"""Talking to the service manager: readiness, watchdog, sockets it passes.

The protocols are a datagram of ``KEY=value`` lines and a few environment variables, so
a library would be longer than this. Where there is no service manager every call here
does nothing. Source: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_FIRST_FD: Final = 3
"""SD_LISTEN_FDS_START."""


@dataclass(frozen=True, slots=True)
class PassedFd:
    """A descriptor the service manager passed at start."""

    fd: int
    name: str


def take_passed_fds(environ: MutableMapping[str, str]) -> tuple[PassedFd, ...]:
    """Return what was passed to this process, and forget the variables.

    The descriptors are made close-on-exec: children must not inherit them, nor take
    the variables for their own.
    """
    pid = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    # Since systemd 257, so that a recycled pid is not taken for the addressee.
    environ.pop("LISTEN_PIDFDID", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return ()
    fds = range(_FIRST_FD, _FIRST_FD + int(count))
    for fd in fds:
        os.set_inheritable(fd, False)  # noqa: FBT003 - as os spells it
    padded = [*names, *[""] * len(fds)]
    return tuple(PassedFd(fd, name) for fd, name in zip(fds, padded, strict=False))


class Notifier:
    """Sends state to the service manager, if there is one.

    Args:
        environ: The environment; the variables are taken out of it, because what the
            daemon starts must not speak for it.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._socket: socket.socket | None = None
        address = environ.pop("NOTIFY_SOCKET", "")
        pid = environ.pop("WATCHDOG_PID", "")
        usec = environ.pop("WATCHDOG_USEC", "")
        self.watchdog_s: float | None = None
        """Longest silence the watchdog takes; None: it does not watch."""
        if usec.isdecimal() and int(usec) and pid in ("", str(os.getpid())):
            self.watchdog_s = int(usec) / 1e6
        if address[:1] in ("/", "@"):
            self._connect(address)

    def _connect(self, address: str) -> None:
        # "@" stands for the NUL of an abstract address.
        target = "\0" + address[1:] if address[0] == "@" else address
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            sock.connect(target)
        except OSError:
            sock.close()
            return
        sock.settimeout(0)
        self._socket = sock

    def ready(self, status: str) -> None:
        """Say that the daemon accepts; *status* is one line for ``systemctl status``."""
        self._send(f"READY=1\nSTATUS={status}\nMAINPID={os.getpid()}")

    def reloading(self) -> None:
        """Say that a reload has begun; `ready` ends it."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_us}")

    def stopping(self) -> None:
        """Say that the daemon is ending."""
        self._send("STOPPING=1\nSTATUS=ending tasks")

    def status(self, text: str) -> None:
        """Set the line for ``systemctl status``."""
        self._send(f"STATUS={text}")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Stop speaking."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, state: str) -> None:
        if self._socket is not None:
            # A manager that does not listen must not stop the daemon.
            with contextlib.suppress(OSError):
                self._socket.send(state.encode(), socket.MSG_NOSIGNAL)
