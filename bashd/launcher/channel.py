"""Packets and their descriptors, as the processes of a cell receive them."""

from __future__ import annotations

import os
import socket

from . import wire


def receive(
    channel: socket.socket, max_fds: int, wanted: int = 0
) -> tuple[bytes, list[int]]:
    """Receive one packet and its descriptors, close-on-exec from the start.

    Args:
        channel: A SEQPACKET socket.
        max_fds: How many descriptors may come.
        wanted: Further flags of recvmsg(2).

    Raises:
        WireError: The packet or its descriptors were cut off.
    """
    message, fds, flags = _receive_fds(channel, max_fds, wanted)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for fd in fds:
            os.close(fd)
        raise wire.WireError("packet cut off")
    return message, fds


def _receive_fds(
    channel: socket.socket, max_fds: int, wanted: int
) -> tuple[bytes, list[int], int]:
    # socket.recv_fds does not pass MSG_CMSG_CLOEXEC on, so this is recvmsg.
    data, ancillary, flags, _ = channel.recvmsg(
        wire.PACKET_BYTES,
        socket.CMSG_SPACE(max_fds * 4),
        socket.MSG_CMSG_CLOEXEC | wanted,
    )
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(payload) - len(payload) % 4
            fds.extend(
                int.from_bytes(payload[at : at + 4], "little")
                for at in range(0, whole, 4)
            )
    return data, fds, flags


def read_payload(fd: int) -> bytes:
    """Read a sealed memfd whole and close it."""
    try:
        size = os.fstat(fd).st_size
        if size > wire.MAX_PAYLOAD_BYTES:
            raise wire.WireError(f"payload of {size} bytes is too long")
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)
