"""What the figures were taken on, and how much of it a process uses."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

MAY_LOOK = os.geteuid() == 0
"""Whether a daemon's memory and descriptors can be seen: it is not dumpable, so not
even by its own user."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a thread, or all of a process, has used."""

    switches: int
    cpu_ns: int


def describe(*, realtime: bool) -> dict[str, str]:
    """Return facts about this machine, for the report."""
    memory = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return {
        "when": time.strftime("%Y-%m-%d %H:%M %Z"),
        "processor": f"{os.cpu_count()} x {_processor()}",
        "memory": f"{int(memory[1]) / 1e6:.0f} GB" if memory else "unknown",
        "kernel": f"Linux {platform.release()}",
        "system": _system(),
        "disk": _disk("/var/tmp"),
        "python": platform.python_version(),
        "bubblewrap": _says(["bwrap", "--version"]),
        "bash": _says(["bash", "--version"]),
        "commit": _commit(),
        "load at the start": load,
        "priority": "real time (SCHED_RR 10)" if realtime else "ordinary",
    }


def pss_bytes(pid: int) -> int:
    """Return a process's memory, what it shares counted by its share."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB$", rollup, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def peak_bytes(pid: int) -> int:
    """Return the most memory a process has had since `forget_peak`."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def forget_peak(pid: int) -> None:
    """Begin anew with `peak_bytes`. Source: proc(5), clear_refs."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def descriptors(pid: int) -> int:
    """Return how many files a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names, not paths


def usage(pid: int) -> dict[int, Usage]:
    """Return what each thread of a process has used since it began."""
    found: dict[int, Usage] = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
            status = (thread / "status").read_text()
            switches = sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", status)))
            # First field: nanoseconds on a processor. Source: sched-stats.rst.
            cpu_ns = int((thread / "schedstat").read_text().split()[0])
            found[int(thread.name)] = Usage(switches, cpu_ns)
    return found


def used_since(before: dict[int, Usage], pid: int) -> Usage:
    """Return what the threads that are there now have used since *before*.

    What a thread used that has ended meanwhile is lost; each is counted as one switch.
    """
    now = usage(pid)
    ended = len(before.keys() - now.keys())
    none = Usage(0, 0)
    pairs = [(after, before.get(thread, none)) for thread, after in now.items()]
    return Usage(
        ended + sum(after.switches - then.switches for after, then in pairs),
        sum(after.cpu_ns - then.cpu_ns for after, then in pairs),
    )


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def _system() -> str:
    release = platform.freedesktop_os_release()
    return release.get("PRETTY_NAME", "unknown")


def _disk(place: str) -> str:
    done = subprocess.run(
        ["stat", "--file-system", "--format=%T", place],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{done.stdout.strip()} ({place})"


def _says(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]


def _commit() -> str:
    here = str(Path(__file__).parent)
    argv = ["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        return _says(argv) or "unknown"
    except OSError:
        return "unknown"
