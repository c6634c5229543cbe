"""Knows every process a program under test has caused, however it was started.

A double fork, a new session or a killed parent loses every trace in the process
table, and that is exactly what a test for left-overs looks for. A cgroup does not
lose it: children are born in the cgroup of their parent. Where this account may not
make cgroups (an ordinary user without delegation) we fall back on parentage, and on
remembering what was seen before; `Enclosure.exact` says which it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.marks import (
    remove_cgroups_of_dead_sessions,
    session_mark,
    start_tick,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class Enclosure:
    """A place to start one program in; `close` it when the program is done.

    Args:
        use_cgroup: False to watch by parentage even where a cgroup could be made.
    """

    def __init__(self, *, use_cgroup: bool = True) -> None:
        self._folder = _make_cgroup() if use_cgroup else None
        self._root_pid: int | None = None
        self._seen: dict[int, int] = {}
        """Pid to start tick of what parentage has shown so far."""

    @property
    def exact(self) -> bool:
        """Whether no process can hide (a cgroup watches)."""
        return self._folder is not None

    @property
    def cgroup(self) -> Path | None:
        """Folder of the cgroup, or None."""
        return self._folder

    def start(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str],
        cwd: str,
        log: Path,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start *argv* inside; its output goes to *log*, its stdin is empty."""
        if self._folder is not None:
            # The shell moves itself and becomes the program: nothing of it is left.
            move = f'echo $$ > {self._folder}/cgroup.procs && exec "$@"'
            argv = ["sh", "-c", move, "sh", *argv]
        with log.open("ab") as sink:
            process = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        self._root_pid = process.pid
        return process

    def delegate_to(self, uid: int, gid: int) -> None:
        """Let a user make cgroups inside. Source: cgroups(7), delegation."""
        if self._folder is not None:
            os.chown(self._folder, uid, gid)
            for name in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
                os.chown(self._folder / name, uid, gid)

    def pids(self) -> frozenset[int]:
        """Return the live processes inside; zombies do not count."""
        if self._folder is not None:
            return frozenset(_members(self._folder))
        self._look_at_parentage()
        return frozenset(
            pid for pid, tick in self._seen.items() if _alive_since(pid, tick)
        )

    def cgroups(self) -> frozenset[str]:
        """Return the cgroups made inside, relative to the enclosure."""
        if self._folder is None:
            return frozenset()
        below = (Path(path) for path, _, _ in os.walk(self._folder))
        return frozenset(
            str(path.relative_to(self._folder))
            for path in below
            if path != self._folder
        )

    def close(self) -> list[str]:
        """Kill what is still inside; return a line for each process that was.

        The caller decides whether left-overs are a failure.
        """
        left = [describe(pid) for pid in self.pids()]
        deadline = time.monotonic() + 10
        while pids := self.pids():
            if time.monotonic() > deadline:
                msg = f"processes survive SIGKILL: {[describe(p) for p in pids]}"
                raise TimeoutError(msg)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        if self._folder is not None:
            # Deepest first: a cgroup with children cannot be removed.
            for path, _, _ in os.walk(self._folder, topdown=False):
                Path(path).rmdir()
        return left

    def _look_at_parentage(self) -> None:
        parents = _parents()
        known = {pid for pid, tick in self._seen.items() if _alive_since(pid, tick)}
        if self._root_pid is not None:
            known.add(self._root_pid)
        while True:
            children = {pid for pid, parent in parents.items() if parent in known}
            if children <= known:
                break
            known |= children
        for pid in known:
            tick = start_tick(pid)
            if tick is not None:
                self._seen[pid] = tick


def describe(pid: int) -> str:
    """Return a line that says what *pid* is."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"{pid} (gone)"
    return f"{pid} {b' '.join(words).decode(errors='replace').strip()[:200]}"


def _make_cgroup() -> Path | None:
    own = _own_cgroup()
    if own is None:
        return None
    remove_cgroups_of_dead_sessions(own, "bashd-test")
    folder = own / f"bashd-test-{session_mark()}-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
    except OSError:
        return None
    return folder


def _own_cgroup() -> Path | None:
    """Return the folder of this process's cgroup in the version 2 hierarchy."""
    mounts = Path("/proc/self/mountinfo").read_text()
    # Field 5 is the mount point; the type follows the separator " - ".
    mount = re.search(r"^(?:\S+ ){4}(\S+) .* - cgroup2 ", mounts, re.MULTILINE)
    place = re.search(
        r"^0::(/.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE
    )
    if mount is None or place is None:
        return None
    folder = Path(mount[1]) / place[1].lstrip("/")
    return folder if (folder / "cgroup.procs").is_file() else None


def _members(folder: Path) -> set[int]:
    found: set[int] = set()
    for path, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            lines = (Path(path) / "cgroup.procs").read_text().split()
            # 0 stands for a process of another pid namespace; it still counts as
            # there, but has no pid of ours. None of our callers sits in one.
            found.update(int(line) for line in lines)
    return found


def _parents() -> dict[int, int]:
    found: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found[int(folder.name)] = int(fields[1])
    return found


def _alive_since(pid: int, tick: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[19]) == tick and fields[0] != "Z"
