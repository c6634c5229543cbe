"""Finding and ending the whole process tree of one task, from the keeper.

Exact where a task has a cgroup (the daemon does that); this is the way without one.
The tree is frozen before it is looked at: scanning and stopping one by one loses to a
growing fork bomb, one ``kill(-1, SIGSTOP)`` does not (3,000 processes in 29 ms). That
is only allowed where -1 cannot reach beyond the cell: as pid 1 of a pid namespace, or
behind a Landlock signal scope. A process that cut every tie (new session, parent gone,
environment cleared) is not found here; it ends with its cell.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NamedTuple

MARKER = b"BASHD_RUN_ID="
_PASSES = 200
"""Bound on the slow path; each pass that finds nothing new ends it."""


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    state: str
    parent: int
    group: int
    session: int


def read_process(pid: int) -> Process | None:
    """Read /proc/PID/stat; None when it is gone. Source: proc_pid_stat(5)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name in parentheses may itself hold spaces and parentheses.
    fields = text[text.rfind(b")") + 2 :].split()
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]))


def process_table() -> list[Process]:
    """Return every process this process can see."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def has_marker(pid: int, marker: bytes) -> bool:
    """Whether the process was started with *marker* in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return False
    return marker in environment.split(b"\0")


def members(
    table: list[Process], leader: int, marker: bytes, spared: frozenset[int]
) -> set[int]:
    """Compute the pids of the task led by *leader*.

    By session, by group, by descent, and by the run's marker for processes whose
    parent is gone. *spared* are the cell's own processes and other tasks' leaders.
    """
    children: dict[int, list[int]] = {}
    for process in table:
        children.setdefault(process.parent, []).append(process.pid)
    pending = [
        process.pid
        for process in table
        if process.pid == leader
        or process.session == leader
        or process.group == leader
        or (marker and process.pid not in spared and has_marker(process.pid, marker))
    ]
    found: set[int] = set()
    while pending:
        pid = pending.pop()
        if pid in found or pid in spared:
            continue
        found.add(pid)
        pending.extend(children.get(pid, ()))
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_tree(
    leader: int, marker: bytes, spared: frozenset[int], *, may_freeze: bool
) -> None:
    """Send SIGKILL to every process of the task.

    *leader* must be a pinned (unreaped) child, so that its number is not reused.
    """
    if may_freeze:
        _kill_frozen(leader, marker, spared)
        return
    stopped: set[int] = set()
    for _ in range(_PASSES):
        new = members(process_table(), leader, marker, spared) - stopped
        if not new:
            break
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def _kill_frozen(leader: int, marker: bytes, spared: frozenset[int]) -> None:
    before = {p.pid for p in process_table() if p.state in "Tt"}
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGSTOP)
    me = os.getpid()
    try:
        table = process_table()
        doomed = members(table, leader, marker, spared | {me})
        for pid in doomed:
            _signal(pid, signal.SIGKILL)
    finally:
        for process in process_table():
            if process.pid not in before and process.pid != me:
                _signal(process.pid, signal.SIGCONT)


def kill_everything(*, may_signal_all: bool, deadline_s: float) -> None:
    """End every descendant, at the end of a cell outside a pid namespace.

    As a child subreaper this process inherits every orphan, so killing children until
    there are none ends the tree; with a signal scope one ``kill(-1)`` does.
    """
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        if may_signal_all:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(-1, signal.SIGKILL)
        for pid in descendants(os.getpid()):
            _signal(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def descendants(root: int) -> set[int]:
    """Return every live descendant of *root* by the parent chain."""
    children: dict[int, list[int]] = {}
    for process in process_table():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    pending = list(children.get(root, ()))
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending.extend(children.get(pid, ()))
    return found


def children_of_self() -> list[int]:
    """Return this single-threaded process's children, zombies included.

    Source: proc_tid_children(5), Linux 3.5 with CONFIG_PROC_CHILDREN.
    """
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(field) for field in file.read().split()]
    except OSError:
        return [p.pid for p in process_table() if p.parent == pid]
