"""Which TCP ports processes listen on, asked of the kernel's socket diagnostics.

A socket belongs to whoever holds a descriptor of it, and to a network namespace. So:
which sockets do the processes hold, in which namespaces are they, who listens there.
pyroute2 does the asking; it takes 0.2 s to import, so that happens with the first
question that finds a socket. Where this daemon may not enter a namespace, the list in
/proc of one of its processes has to do. All of it blocks: for a worker thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bashd.launcher import kernel

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger(__name__)

_LISTEN: Final = 10
"""TCP_LISTEN, net/tcp_states.h."""
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")

Listeners = dict[int, int]
"""Inode of a listening socket to its port."""


def listening_ports(trees: list[set[int]]) -> list[tuple[int, ...]]:
    """Return the ports that each tree of processes listens on, in order.

    Args:
        trees: Pids as this process numbers them.
    """
    held = [
        {pid: inodes for pid in tree if (inodes := sockets_of(pid))} for tree in trees
    ]
    by_namespace: dict[str, Listeners] = {}
    found: list[tuple[int, ...]] = []
    for tree in held:
        ports: set[int] = set()
        for pid, inodes in tree.items():
            name = _namespace(pid)
            if name not in by_namespace:
                by_namespace[name] = _listeners_near(pid, name)
            listeners = by_namespace[name]
            ports |= {listeners[inode] for inode in inodes & listeners.keys()}
        found.append(tuple(sorted(ports)))
    return found


def sockets_of(pid: int) -> set[int]:
    """Return the inodes of the sockets a process holds; empty if we may not look."""
    found: set[int] = set()
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                match = _SOCKET.fullmatch(os.readlink(entry.path))  # noqa: PTH115
                if match:
                    found.add(int(match[1]))
    return found


def _namespace(pid: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115 - no file
    except OSError:
        return ""


def _listeners_near(pid: int, name: str) -> Listeners:
    """Return who listens in the network namespace of *pid*."""
    if name == _namespace("self"):
        return _ask_kernel()
    try:
        fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        found = _ask_in(fd)
    finally:
        os.close(fd)
    if found is None:
        found = Listeners()
        for table in ("tcp", "tcp6"):
            with contextlib.suppress(OSError):
                found |= parse_table(Path(f"/proc/{pid}/net/{table}").read_text())
    return found


def _ask_in(namespace_fd: int) -> Listeners | None:
    """Ask in another network namespace; None where this daemon may not enter it."""
    answer: list[Listeners] = []

    def ask() -> None:
        with contextlib.suppress(OSError):
            kernel.setns(namespace_fd, kernel.CLONE_NEWNET)
            answer.append(_ask_kernel())

    # A thread of its own, which ends: a pooled one would stay in the namespace.
    thread = threading.Thread(target=ask, name="ports")
    thread.start()
    thread.join()
    return answer[0] if answer else None


def _ask_kernel() -> Listeners:
    """Ask the namespace this thread is in."""
    from pyroute2.netlink.diag import DiagSocket  # noqa: PLC0415 - see the module

    found: Listeners = {}
    try:
        with DiagSocket() as diag:
            untyped: Any = diag
            for family in (socket.AF_INET, socket.AF_INET6):
                for sock in untyped.get_sock_stats(family=family, states=1 << _LISTEN):
                    found[int(sock["idiag_inode"])] = int(sock["idiag_sport"])
    except Exception as error:  # noqa: BLE001 - pyroute2's errors have no common root
        logger.warning("cannot ask for listening sockets: %s", error)
    return found


def parse_table(text: str) -> Listeners:
    """Return the listeners in a /proc/PID/net/tcp. Source: proc_pid_net(5)."""
    found: Listeners = {}
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > _INODE_FIELD and int(fields[3], 16) == _LISTEN:
            found[int(fields[_INODE_FIELD])] = int(fields[1].rpartition(":")[2], 16)
    return found


_INODE_FIELD: Final = 9


def ports_of(pids: Iterable[int]) -> tuple[int, ...]:
    """Return the ports that some processes listen on, in order."""
    return listening_ports([set(pids)])[0]
