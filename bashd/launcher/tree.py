"""Finding and ending the whole process tree of one task, without a cgroup.

Exact where a task has a cgroup (the daemon does that); this is the way without one.
The keeper runs it for its own cell, the daemon for what outlived its keeper.

The tree is frozen before it is looked at: scanning and stopping one by one loses to a
growing fork bomb, one ``kill(-1, SIGSTOP)`` does not (3,000 processes in 29 ms). That
is only allowed where -1 cannot reach beyond the cell: as pid 1 of a pid namespace, or
behind a Landlock signal scope. A process that cut every tie (new session, parent gone,
environment cleared) is not found here; it ends with its cell.

No signal goes to a number that was looked up: a pidfd is opened, and the process behind
it must be the one that was found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

MARKER = b"BASHD_RUN_ID="
_PASSES = 200
"""Bound on the slow path; each pass that finds nothing new ends it."""
_ALL = -1
_STOPPED = "Tt"
_ENDED = "ZX"


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int
    """Ticks since boot; with the pid it names a process for good."""


def read_process(pid: int) -> Process | None:
    """Read /proc/PID/stat; None when it is gone. Source: proc_pid_stat(5)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name in parentheses may itself hold spaces and parentheses.
    fields = text[text.rfind(b")") + 2 :].split()
    return Process(pid, fields[0].decode(), *(int(fields[at]) for at in (1, 2, 3, 19)))


def process_table() -> list[Process]:
    """Return every process this process can see."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def has_marker(pid: int, markers: frozenset[bytes]) -> bool:
    """Whether the process was started with one of *markers* in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return False
    return not markers.isdisjoint(environment.split(b"\0"))


def members(
    table: list[Process],
    leaders: frozenset[int],
    markers: frozenset[bytes],
    spared: frozenset[int],
) -> list[Process]:
    """Return the processes of the tasks led by *leaders*.

    By session, by group, by descent, and by a run's marker for processes whose
    parent is gone. *spared* are the cell's own processes and other tasks' leaders.
    """
    children: dict[int, list[Process]] = {}
    for process in table:
        children.setdefault(process.parent, []).append(process)
    pending = [
        process
        for process in table
        if not leaders.isdisjoint((process.pid, process.session, process.group))
        or (markers and process.pid not in spared and has_marker(process.pid, markers))
    ]
    found: dict[int, Process] = {}
    while pending:
        process = pending.pop()
        if process.pid in found or process.pid in spared:
            continue
        found[process.pid] = process
        pending.extend(children.get(process.pid, ()))
    return list(found.values())


def send(process: Process, number: int) -> None:
    """Signal a process that was found, unless its pid is another's by now."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        now = read_process(process.pid)
        if now is not None and now.started == process.started:
            signal.pidfd_send_signal(pidfd, number)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        os.close(pidfd)


def kill_trees(
    leaders: frozenset[int],
    markers: frozenset[bytes],
    spared: frozenset[int],
    *,
    may_freeze: bool,
) -> None:
    """Send SIGKILL to every process of the tasks.

    *leaders* must be pinned (unreaped) children, so that no number is reused.
    """

    def find() -> list[Process]:
        return members(process_table(), leaders, markers, spared)

    if may_freeze:
        _kill_frozen(find)
    else:
        _stop_and_kill(find)


def kill_orphans(runs: Iterable[tuple[int, bytes]]) -> None:
    """Send SIGKILL to what is left of commands whose keeper is gone.

    Args:
        runs: For each its leader's pid, 0 where that has ended, and its marker.
    """
    runs = list(runs)
    leaders = frozenset(pid for pid, _ in runs if pid > 0)
    markers = frozenset(marker for _, marker in runs if marker)
    spared = frozenset((os.getpid(), 1))
    _stop_and_kill(lambda: members(process_table(), leaders, markers, spared))


def _stop_and_kill(find: Callable[[], list[Process]]) -> None:
    stopped: dict[int, Process] = {}
    for _ in range(_PASSES):
        new = [
            process
            for process in find()
            if process.pid not in stopped and process.state not in _ENDED
        ]
        if not new:
            break
        for process in new:
            send(process, signal.SIGSTOP)
            stopped[process.pid] = process
    for process in stopped.values():
        send(process, signal.SIGKILL)


def _kill_frozen(find: Callable[[], list[Process]]) -> None:
    before = {p.pid for p in process_table() if p.state in _STOPPED}
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(_ALL, signal.SIGSTOP)
    me = os.getpid()
    try:
        for process in find():
            if process.pid != me:
                send(process, signal.SIGKILL)
    finally:
        for process in process_table():
            if process.pid not in before and process.pid != me:
                send(process, signal.SIGCONT)


def kill_everything(*, may_signal_all: bool, deadline_s: float) -> None:
    """End every descendant, at the end of a cell outside a pid namespace.

    As a child subreaper this process inherits every orphan, so killing children until
    there are none ends the tree; with a signal scope one ``kill(-1)`` does.
    """
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        if may_signal_all:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(_ALL, signal.SIGKILL)
        for process in descendants(os.getpid()):
            send(process, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def descendants(root: int) -> list[Process]:
    """Return every live descendant of *root* by the parent chain."""
    children: dict[int, list[Process]] = {}
    for process in process_table():
        children.setdefault(process.parent, []).append(process)
    found: dict[int, Process] = {}
    pending = list(children.get(root, ()))
    while pending:
        process = pending.pop()
        if process.pid not in found:
            found[process.pid] = process
            pending.extend(children.get(process.pid, ()))
    return list(found.values())


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
