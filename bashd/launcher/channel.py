"""Packets and their descriptors, as both ends of a cell's sockets receive them."""

from __future__ import annotations

import os
import socket

from . import wire

# As plain numbers: to Python these are enumerations, and costly to combine.
_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
_CUT_OFF = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)


class CutOffError(wire.WireError):
    """A packet came without all of its bytes or descriptors.

    Descriptors are also cut off where this process may open no more.
    """

    def __init__(self, message: bytes) -> None:
        super().__init__("packet cut off")
        self.message = message


def receive(channel: socket.socket, max_fds: int) -> tuple[bytes, list[int]]:
    """Receive one packet and its descriptors, close-on-exec from the start.

    Args:
        channel: A SEQPACKET socket.
        max_fds: How many descriptors may come.

    Raises:
        CutOffError: It was not whole; its descriptors are closed.
    """
    # socket.recv_fds does not pass MSG_CMSG_CLOEXEC on, so this is recvmsg.
    message, ancillary, flags, _ = channel.recvmsg(
        wire.PACKET_BYTES, socket.CMSG_LEN(max(max_fds, 1) * 4), _CLOEXEC
    )
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.extend(memoryview(payload[: len(payload) // 4 * 4]).cast("i"))
    if flags & _CUT_OFF:
        for fd in fds:
            os.close(fd)
        raise CutOffError(message)
    return message, fds


def read_payload(fd: int) -> bytes:
    """Read a sealed memfd whole and close it."""
    try:
        size = os.fstat(fd).st_size
        if size > wire.MAX_PAYLOAD_BYTES:
            raise wire.WireError(f"payload of {size} bytes is too long")
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)
