"""What the kernel says about the process at the other end of a Unix socket.

Nothing here decides anything; `bashd.daemon.peer` does. Every chunk that arrives is
stamped with its sender's pid, uid and gid, and from Linux 6.5 on with a pidfd.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from bashd.core.errors import FrameError, NotAllowedError

# Source: include/uapi/asm-generic/socket.h and include/linux/socket.h; the pidfd
# options are there since Linux 6.5.
_SO_PEERGROUPS: Final = 59
_SO_PASSPIDFD: Final = 76
_SO_PEERPIDFD: Final = 77
_SCM_PIDFD: Final = 4
UCRED: Final = struct.Struct("3i")
_FD: Final = struct.Struct("i")
_CONTROL_BYTES: Final = socket.CMSG_SPACE(UCRED.size) + socket.CMSG_SPACE(_FD.size)
# As plain numbers: these are enumerations to Python, and costly to combine.
_RECEIVE: Final = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_CUT_OFF: Final = int(socket.MSG_CTRUNC)

NO_PIDFD: Final = -1
"""This kernel sends none."""
ENDED: Final = -2
"""This kernel sends one, but the process had ended before we looked."""


class Credentials(NamedTuple):
    """A process as the kernel names it, in the daemon's own namespaces."""

    pid: int
    """0 when the process is not visible from the daemon's pid namespace."""
    uid: int
    gid: int


def ask_for_credentials(sock: socket.socket) -> None:
    """Have the kernel stamp what arrives; a listener hands this to what it accepts."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    with contextlib.suppress(OSError):  # before Linux 6.5
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSPIDFD, 1)


def connector_of(sock: socket.socket) -> Credentials:
    """Return who called connect() on the other end."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size)
    return Credentials(*UCRED.unpack(raw))


def groups_of(sock: socket.socket) -> tuple[int, ...]:
    """Return the supplementary groups the connector had."""
    # 65536 is the kernel's NGROUPS_MAX; ask small first, as nearly everyone fits.
    for count in (64, 65536):
        try:
            raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * count)
        except OSError as error:
            if error.errno != errno.ERANGE:
                raise
        else:
            return struct.unpack(f"{len(raw) // 4}I", raw)
    raise NotAllowedError("the calling process is in too many groups")


def connector_pidfd(sock: socket.socket) -> int:
    """Return a new pidfd of the connector; `NO_PIDFD` where there is none to have."""
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return NO_PIDFD


def receive(sock: socket.socket, size: int) -> tuple[bytes, bytes, int]:
    """Receive one chunk and who sent it, without waiting.

    Returns:
        The data (empty at the end of the stream), the sender's raw credentials, and
        its pidfd, which the caller must close; `NO_PIDFD` or `ENDED` without one.

    Raises:
        BlockingIOError: Nothing is there.
        FrameError: The chunk came with descriptors; they are closed.
        OSError: The connection broke.
    """
    data, control, flags, _ = sock.recvmsg(size, _CONTROL_BYTES, _RECEIVE)
    credentials, pidfd = b"", NO_PIDFD
    unwanted = flags & _CUT_OFF
    for level, kind, value in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            credentials = value
        elif level == socket.SOL_SOCKET and kind == _SCM_PIDFD:
            # The kernel passes an error number where the sender is gone already.
            pidfd = max(_FD.unpack(value)[0], ENDED)
        elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            _close_all(value)
            unwanted = 1
    if unwanted:
        if pidfd >= 0:
            os.close(pidfd)
        raise FrameError("descriptors cannot be sent to this socket")
    return data, credentials, pidfd


def _close_all(raw: bytes) -> None:
    for (fd,) in _FD.iter_unpack(raw[: len(raw) // _FD.size * _FD.size]):
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the kernel says about a live process, beyond its credentials."""

    no_new_privs: bool
    groups: tuple[int, ...]


def read_standing(pid: int) -> Standing:
    """Read /proc/PID/status.

    Raises:
        OSError: There is no such process, or it is hidden from the daemon.
    """
    no_new_privs, groups = True, ()
    for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
        if line.startswith(b"NoNewPrivs:"):
            no_new_privs = line.split()[1] != b"0"
        elif line.startswith(b"Groups:"):
            groups = tuple(int(gid) for gid in line.split()[1:])
    return Standing(no_new_privs, groups)


def units_of(pid: int) -> frozenset[str]:
    """Return the units a process is in, its slices and scopes included.

    Raises:
        OSError: There is no such process.
    """
    return parse_units(Path(f"/proc/{pid}/cgroup").read_text())


def parse_units(text: str) -> frozenset[str]:
    """Return the names along the path of a process's control group.

    Only of the hierarchy that systemd arranges: version 2, or ``name=systemd`` on
    machines that still mount version 1. Source: cgroups(7), /proc/PID/cgroup.
    """
    found: set[str] = set()
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "name=systemd"):
            found.update(part for part in path.split("/") if part)
    return frozenset(found)


def started_at(pid: int) -> float:
    """Return when a process started, in seconds since boot.

    Source: proc(5), field 22 of /proc/PID/stat; fields are counted behind the name,
    which may itself hold spaces and parentheses.
    """
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
