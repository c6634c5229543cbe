"""The process table, and what is left of a cell's commands when their keeper is gone.

A keeper that lives does this itself, and better (``tree.c``); a task with a cgroup needs
neither. A process that cut every tie (new session, parent gone, environment cleared) is
not found.

No signal goes to a number that was looked up: a pidfd is opened, and the process behind
it must be the one that was found.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

MARKER = b"BASHD_RUN_ID="
_PASSES = 200
"""Bound on the slow path; each pass that finds nothing new ends it."""
_ENDED = "ZX"
_MAX_ENVIRON_BYTES = 8 * 1024 * 1024
"""More than execve takes; but a process may say that its environment is any part of its
memory, terabytes of it. Source: prctl(2), PR_SET_MM_MAP."""


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
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may itself hold spaces and parentheses.
    fields = text[text.rfind(b")") + 2 :].split()
    return Process(pid, fields[0].decode(), *(int(fields[at]) for at in (1, 2, 3, 19)))


def process_table() -> list[Process]:
    """Return every process this process can see."""
    names = [entry.name for entry in os.scandir("/proc")]
    found = (read_process(int(name)) for name in names if name.isdigit())
    return [process for process in found if process is not None]


def has_marker(pid: int, markers: frozenset[bytes]) -> bool:
    """Whether the process was started with one of *markers* in its environment."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            environment = file.read(_MAX_ENVIRON_BYTES)
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


def children(pid: int) -> list[int]:
    """Return the children of a process with one thread, zombies included.

    Source: proc_tid_children(5), Linux 3.5 with CONFIG_PROC_CHILDREN.
    """
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_bytes()
    except OSError:
        # 0 is no process; the kernel names it as the parent of what it has made itself.
        return [p.pid for p in process_table() if p.parent == pid != 0]
    return [int(field) for field in text.split()]
