"""Dialling home: how a keeper finds the daemon that replaces a dead one.

The keeper never listens: a listening socket in a launcher would let a confined command
drive it. It connects, by a name relative to a folder it was given as a descriptor, which
works from inside private mounts and behind Landlock while the same socket has no path in
the cell. It checks the uid of whoever answers; the daemon checks the cell's secret.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import Any

from . import wire

_RETRY_S = 0.2
_ANSWER_S = 10.0


def dial(folder_fd: int, settings: dict[str, Any]) -> socket.socket | None:
    """Connect to a new daemon within the orphan timeout.

    Returns:
        The control socket, accepted by the daemon; None when nobody came in time or
        the daemon does not want this cell.
    """
    deadline = time.monotonic() + float(settings["timeout_s"])
    hello = wire.Adopt(settings["cell"], settings["secret"]).encode()
    while folder_fd >= 0 and time.monotonic() < deadline:
        try:
            os.fchdir(folder_fd)
            channel = _connect(settings["name"], int(settings["uid"]))
        except OSError:
            time.sleep(_RETRY_S)
            continue
        finally:
            os.chdir("/")
        try:
            channel.send(hello)
            answer = channel.recv(1)
        except OSError:
            answer = b""
        if answer == wire.Adopt.YES:
            channel.settimeout(None)
            return channel
        channel.close()
        if answer:
            return None
        # It died, too, before it answered, or was replaced.
        time.sleep(_RETRY_S)
    return None


def _connect(name: str, uid: int) -> socket.socket:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel.settimeout(_ANSWER_S)
        channel.connect(name)
        # struct ucred, unix(7): who called listen() on the other end.
        answer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("iII", answer)[1] != uid:
            raise PermissionError("another user answers at home")  # noqa: TRY301
    except BaseException:
        channel.close()
        raise
    return channel
