"""The kernel's audit records, by netlink: what Landlock refused, as it happens.

Two sockets of the audit family. One is a member of the multicast group, which needs
CAP_AUDIT_READ and no auditd, and is filtered in the kernel so that only the types
`bashd.core.records` understands are delivered. The other asks for the kernel's status,
which needs CAP_AUDIT_CONTROL: whether audit is on, how many records were lost, how many
wait to be delivered.

Plain sockets rather than pyroute2's: one status request took 24 µs here and 350 µs
there (its sockets sit on an asyncio loop), and the import would take the idle daemon
from 35 MB to 48.

Not read: refusals by a read-only mount (EROFS), which come before any Landlock hook. An
audit rule on ``exit=-EROFS`` records them, with path and pid, but it turns the slow path
of *every* system call of *every* process of the machine on: measured, stat(2) took 27 %
longer, open(2) and close(2) 50 %, getppid(2) 25 %. That is not ours to decide, so under
bwrap those stay what stderr says.

Source: kernel/audit.c, linux/audit.h, linux/netlink.h, linux/filter.h.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bashd.core.records import EXCLUDE_LIST, KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

_NETLINK_AUDIT: Final = 9
_GROUP_READLOG: Final = 1
_AUDIT_GET: Final = 1000
_AUDIT_LIST_RULES: Final = 1013
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_NLM_F_REQUEST: Final = 1
_SO_RCVBUFFORCE: Final = 33
"""asm-generic/socket.h; needs CAP_NET_ADMIN."""
_HEADER: Final = struct.Struct("=IHHII")
_STATUS: Final = struct.Struct("=8I")
"""struct audit_status up to *backlog*; later fields depend on the kernel."""

_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""About 4,000 records: what a flood brings in the time that one turn of a loaded loop
takes. What does not fit is known to be lost (ENOBUFS)."""
_RECORD_BYTES: Final = 9216
"""Longest record with its header. Source: MAX_AUDIT_MESSAGE_LENGTH, 8970."""


@dataclass(frozen=True, slots=True)
class Status:
    """The kernel's audit system at one moment."""

    enabled: bool
    lost: int
    """Records that were thrown away since boot; wraps at 32 bits."""
    waiting: int
    """Records that are yet to be delivered."""


class RecordSocket:
    """Receives records; owns its descriptor.

    Raises:
        OSError: No CAP_AUDIT_READ, or no audit in this kernel or container.
    """

    def __init__(self) -> None:
        self._socket = _open()
        try:
            try:
                self._socket.setsockopt(
                    socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES
                )
            except PermissionError:
                self._socket.setsockopt(
                    socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES
                )
            _deliver_only(self._socket, KINDS)
            self._socket.bind((0, _GROUP_READLOG))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor, for waiting."""
        return self._socket.fileno()

    def take(self, handle: Callable[[int, str], None], most: int) -> int:
        """Hand up to *most* records that have arrived to *handle*, without waiting.

        Returns:
            How many there were.

        Raises:
            RecordsLostError: The buffer overflowed; what is in it comes with the next
                call.
        """
        taken = 0
        receive = self._socket.recvfrom
        while taken < most:
            try:
                data, sender = receive(_RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    raise RecordsLostError from error
                raise
            # Netlink address: (pid, groups); only the kernel has pid 0.
            if sender[0] != 0 or len(data) < _HEADER.size:
                continue
            kind = _HEADER.unpack_from(data)[1]
            handle(kind, data[_HEADER.size :].rstrip(b"\0").decode(errors="replace"))
            taken += 1
        return taken

    def close(self) -> None:
        """Leave the group."""
        self._socket.close()


class RecordsLostError(Exception):
    """Records came faster than they were read."""


class StatusSocket:
    """Asks for the kernel's audit status; owns its descriptor.

    Raises:
        OSError: No audit in this kernel or container.
    """

    def __init__(self) -> None:
        self._socket = _open()
        self._asked = 0
        try:
            self._socket.bind((0, 0))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor, for waiting."""
        return self._socket.fileno()

    def ask(self) -> int:
        """Send a request; returns its number.

        Raises:
            OSError: The kernel did not take it.
        """
        self._asked = (self._asked + 1) & 0x7FFFFFFF
        self._socket.sendto(_request(_AUDIT_GET, self._asked), (0, 0))
        return self._asked

    def answer(self, number: int) -> Status | None:
        """Return the answer to a request if it is there; older ones are dropped.

        Raises:
            PermissionError: No CAP_AUDIT_CONTROL.
            OSError: The kernel refused for another reason.
        """
        while True:
            try:
                data = self._socket.recv(_RECORD_BYTES)
            except BlockingIOError:
                return None
            _, kind, _, replied, _ = _HEADER.unpack_from(data)
            if replied != number:
                continue
            if kind == _NLMSG_ERROR:
                _raise_error(data)
            elif kind == _AUDIT_GET:
                return _status_of(data)

    def close(self) -> None:
        """Close the descriptor."""
        self._socket.close()


def survey() -> tuple[Status, bool]:
    """Return the status, and whether a rule keeps record types from being logged.

    Blocking, for as long as the kernel takes to list its rules.

    Raises:
        PermissionError: No CAP_AUDIT_CONTROL.
        OSError: No audit here, or the kernel did not answer.
    """
    with _open() as sock:
        sock.settimeout(_ANSWER_S)
        sock.bind((0, 0))
        sock.sendto(_request(_AUDIT_LIST_RULES, 1), (0, 0))
        excludes = False
        while (data := _next(sock, 1)) is not None:
            # struct audit_rule_data begins with the number of its list.
            (listed,) = struct.unpack_from("=I", data, _HEADER.size)
            excludes = excludes or listed & 0xF == EXCLUDE_LIST
        sock.sendto(_request(_AUDIT_GET, 2), (0, 0))
        data = _next(sock, 2)
        if data is None:
            raise OSError(errno.EPROTO, "no status in the answer")
        return _status_of(data), excludes


_ANSWER_S: Final = 1.0


def _next(sock: socket.socket, number: int) -> bytes | None:
    """Return the next message that answers a request; None at their end."""
    while True:
        data = sock.recv(_RECORD_BYTES)
        _, kind, _, replied, _ = _HEADER.unpack_from(data)
        if replied != number:
            continue
        if kind == _NLMSG_ERROR:
            _raise_error(data)
        elif kind == _NLMSG_DONE:
            return None
        else:
            return data


def _request(kind: int, number: int) -> bytes:
    return _HEADER.pack(_HEADER.size, kind, _NLM_F_REQUEST, number, 0)


def _status_of(data: bytes) -> Status:
    fields = _STATUS.unpack_from(data, _HEADER.size)
    return Status(fields[1] != 0, fields[6], fields[7])


def _open() -> socket.socket:
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    return socket.socket(socket.AF_NETLINK, kind, _NETLINK_AUDIT)


def _raise_error(data: bytes) -> None:
    (number,) = struct.unpack_from("=i", data, _HEADER.size)
    if number:
        raise OSError(-number, os.strerror(-number))


# linux/bpf_common.h
_LOAD_HALF: Final = 0x28  # BPF_LD | BPF_H | BPF_ABS
_JUMP_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_TYPE_OFFSET: Final = 4
"""Of ``nlmsg_type`` in a netlink header."""
_SO_ATTACH_FILTER: Final = 26


def _deliver_only(sock: socket.socket, kinds: tuple[int, ...]) -> None:
    """Have the kernel drop messages of all other types before they are queued."""
    instruction = struct.Struct("=HBBI")
    program = instruction.pack(_LOAD_HALF, 0, 0, _TYPE_OFFSET)
    for left, kind in zip(range(len(kinds), 0, -1), kinds, strict=True):
        # BPF loads in network order, netlink headers are in the machine's.
        loaded = kind if sys.byteorder == "big" else socket.htons(kind)
        program += instruction.pack(_JUMP_EQUAL, left, 0, loaded)
    program += instruction.pack(_RETURN, 0, 0, 0)
    program += instruction.pack(_RETURN, 0, 0, 0xFFFFFFFF)
    held = array.array("B", program)
    address, _ = held.buffer_info()
    # struct sock_fprog; the kernel copies the program before it returns.
    fprog = struct.pack("HxxxxxxP", len(program) // instruction.size, address)
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)
