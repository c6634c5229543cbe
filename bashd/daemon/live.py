"""What running commands use at this moment: memory, CPU time, listening ports.

Of the whole tree: exactly where a command has a cgroup, else by descent, group and
session. Everything here blocks for as long as it takes to read /proc: for a worker
thread.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bashd.daemon import tree
from bashd.daemon.ports import listening_ports

if TYPE_CHECKING:
    from bashd.daemon.cgroup import Group

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICK_US: Final = 1_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Running:
    """A running command as far as this module cares."""

    host_pid: int
    """Of its shell; 0: not known."""
    group: Group | None


@dataclass(frozen=True, slots=True)
class Use:
    """What a command uses now."""

    rss_bytes: int = 0
    """Resident memory of its processes; shared pages count for each of them."""
    cpu_ms: int = 0
    """So far, including processes that have ended."""
    ports: tuple[int, ...] = ()


def look(commands: list[Running]) -> list[Use]:
    """Return what each command uses, in order."""
    trees = _trees(commands)
    ports = listening_ports(trees)
    return [
        Use(
            sum(map(_rss_bytes, pids)),
            _cpu_us(command, pids) // 1000,
            ports_of_one,
        )
        for command, pids, ports_of_one in zip(commands, trees, ports, strict=True)
    ]


def _trees(commands: list[Running]) -> list[set[int]]:
    loose = any(command.group is None for command in commands)
    table = tree.process_table() if loose else []
    found: list[set[int]] = []
    for command in commands:
        if command.group is not None:
            found.append(command.group.pids())
        elif command.host_pid > 0:
            leaders = frozenset((command.host_pid,))
            members = tree.members(table, leaders, frozenset(), frozenset())
            found.append({process.pid for process in members})
        else:
            found.append(set())
    return found


def _rss_bytes(pid: int) -> int:
    """Return a process's resident memory. Source: proc_pid_statm(5), field 2."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    return 0


def _cpu_us(command: Running, pids: set[int]) -> int:
    counted = command.group.cpu_us() if command.group is not None else 0
    return counted or sum(map(_cpu_us_of, pids))


def _cpu_us_of(pid: int) -> int:
    """Return a process's CPU time and that of the children it waited for.

    Source: proc_pid_stat(5), fields 14 to 17; the name may hold spaces.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_bytes()
        ticks = text.rpartition(b")")[2].split()[11:15]
        return sum(map(int, ticks)) * _TICK_US
    return 0
