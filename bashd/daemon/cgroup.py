"""One cgroup: made, limited, ended exactly, accounted for, removed.

Only file operations of the kernel's interface; where groups may be made is
`bashd.daemon.cgroup_places`' business, and for whom is `bashd.daemon.cgroups`'.

Source: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bashd.core.policy import Limits

CONTROLLERS: Final = ("cpu", "memory", "pids")
"""Those that limit what a policy can limit."""
_PASSES: Final = 50
"""Rounds of killing by pid, where no new process can appear: two are the rule."""


@dataclass(frozen=True, slots=True)
class Group:
    """The group of one command, in the hierarchy of version 2."""

    folder: str
    controllers: frozenset[str]
    """Those that are enabled for it."""

    @property
    def path(self) -> Path:
        """Its folder."""
        return Path(self.folder)

    def make(self, limits: Limits, owner: int | None) -> int:
        """Make it and set the limits its controllers can keep.

        Args:
            limits: The policy's.
            owner: Uid that may put its processes in; None: this daemon's alone.

        Returns:
            A descriptor of its folder, for a process to be born in it.

        Raises:
            OSError: The kernel refuses; nothing is left of it.
        """
        os.mkdir(self.folder)  # noqa: PTH102 - one a command; Path costs half as much
        try:
            self._limit(limits)
            if owner is not None:
                os.chown(f"{self.folder}/cgroup.procs", owner, -1)
            return os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            self.remove()
            raise

    def _limit(self, limits: Limits) -> None:
        if "pids" in self.controllers and limits.pids is not None:
            write(self.path / "pids.max", str(limits.pids))
        if "memory" in self.controllers:
            # A command that loses one process to the limit is not worth keeping.
            write(self.path / "memory.oom.group", "1")
            if limits.memory_bytes is not None:
                write(self.path / "memory.max", str(limits.memory_bytes))
                with contextlib.suppress(OSError):  # a kernel without swap accounting
                    write(self.path / "memory.swap.max", "0")
        if "cpu" in self.controllers and limits.cpu_weight is not None:
            write(self.path / "cpu.weight", str(limits.cpu_weight))

    def kill(self) -> bool:
        """Kill everything in it and below, forks included; False if it cannot."""
        try:
            write(self.path / "cgroup.kill", "1")
        except FileNotFoundError:
            if not self.path.is_dir():
                return True
            return self._kill_frozen()
        except OSError:
            return False
        return True

    def _kill_frozen(self) -> bool:
        """Do what cgroup.kill does, before Linux 5.14: what is frozen cannot fork."""
        try:
            write(self.path / "cgroup.freeze", "1")
        except OSError:
            return False
        for _ in range(_PASSES):
            killed = [pid for pid in self.pids() if _kill_member(pid, self.path)]
            if not killed:
                break
        with contextlib.suppress(OSError):
            write(self.path / "cgroup.freeze", "0")
        return True

    def pids(self) -> set[int]:
        """Return its processes."""
        return members(self.folder)

    def cpu_us(self) -> int:
        """Return the CPU time of every process that ever was in it."""
        return _field(f"{self.folder}/cpu.stat", "usage_usec")

    def peak_bytes(self) -> int:
        """Return the most memory it had at once (Linux 5.19); 0: not counted."""
        if "memory" not in self.controllers:
            return 0
        return _number(f"{self.folder}/memory.peak")

    def oom_kills(self) -> int:
        """Return how many of its processes ended for want of memory in it."""
        if "memory" not in self.controllers:
            return 0
        return _field(f"{self.folder}/memory.events", "oom_kill")

    def remove(self) -> bool:
        """Remove it; False as long as a process is in it."""
        return remove_folder(self.folder)


@dataclass(frozen=True, slots=True)
class LegacyGroup:
    """The group of a whole cell, in a hierarchy of version 1.

    A process can be born into a group of its own in version 2 only, and moving each
    would make every command wait; so here a cell is limited as a whole.
    """

    path: Path
    controller: str
    """``pids`` or ``memory``."""

    def make(self, limits: Limits, spare_pids: int) -> None:
        """Make it and set its limit; *spare_pids* come on top of the policy's.

        Raises:
            OSError: The kernel refuses.
        """
        self.path.mkdir(exist_ok=True)
        if self.controller == "pids" and limits.pids is not None:
            write(self.path / "pids.max", str(limits.pids + spare_pids))
        if self.controller == "memory" and limits.memory_bytes is not None:
            limit = str(limits.memory_bytes)
            write(self.path / "memory.limit_in_bytes", limit)
            with contextlib.suppress(OSError):  # a kernel without swap accounting
                write(self.path / "memory.memsw.limit_in_bytes", limit)

    def oom_kills(self) -> int:
        """Return how many of its processes ended for want of memory (Linux 4.13)."""
        return _field(f"{self.path}/memory.oom_control", "oom_kill")


def write(path: Path, text: str) -> None:
    """Write one value to a file of the kernel's, in one call as it wants it."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def read(path: Path | str) -> str:
    """Read a small file; empty where there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 65536).decode(errors="replace")
    except OSError:
        return ""  # the group went away in between
    finally:
        os.close(fd)


def members(folder: Path | str) -> set[int]:
    """Return the processes of a group, not those of the groups in it."""
    return {int(line) for line in read_whole(f"{folder}/cgroup.procs").split()}


def read_whole(path: str) -> bytes:
    """Read a list of the kernel's, which one call may not return whole.

    Empty where there is none.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    text = b""
    try:
        while piece := os.read(fd, 65536):
            text += piece
    except OSError:
        return b""  # it went away in between
    finally:
        os.close(fd)
    return text


def remove_folder(path: Path | str) -> bool:
    """Remove a group's folder; False as long as something is in it."""
    try:
        os.rmdir(path)  # noqa: PTH106 - one a command
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _number(path: str) -> int:
    text = read(path).strip()
    return int(text) if text.isdecimal() else 0


def _field(path: str, name: str) -> int:
    for line in read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _kill_member(pid: int, path: Path) -> bool:
    """Kill *pid* if it is still in the group; False if it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The pidfd pins the process; only now is its membership a safe check.
        if not _is_member(pid, path):
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def _is_member(pid: int, path: Path) -> bool:
    # Two components are enough: the cell's part is a random number.
    ending = "/".join(path.parts[-2:])
    lines = read(Path(f"/proc/{pid}/cgroup")).split()
    return any(line.endswith(f"/{ending}") for line in lines)
