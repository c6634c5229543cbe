"""One function for each budget: sets the scene, measures, returns a figure."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bashd.client import connect_sync
from tests.bench.rivals import compare, raw_bwrap_argv, run_quietly

if TYPE_CHECKING:
    from collections.abc import Callable

    from bashd.client import SyncClient
    from tests.support.daemons import RunningDaemon

OUTPUT_BYTES = 512 * 1024 * 1024
"""Enough to leave the page cache's first surprises behind, not so much as to wear."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured against what may be."""

    name: str
    value: float
    budget: float
    unit: str
    detail: str
    at_least: bool = False
    """The budget is a lower bound."""

    @property
    def kept(self) -> bool:
        """Whether the budget holds."""
        if self.at_least:
            return self.value >= self.budget
        return self.value <= self.budget


def warm(daemon: RunningDaemon, workspace: Path, rounds: int) -> Figure:
    """A warm confined `true`, back to back, against raw bubblewrap."""
    with _client(daemon, workspace) as client:
        found = compare(
            lambda: _true(client),
            lambda: run_quietly(raw_bwrap_argv()),
            rounds=rounds,
            batch=5,
        )
    detail = f"{found.ours_ms:.2f} ms, raw bwrap {found.theirs_ms:.2f} ms"
    return Figure("warm, back to back", found.ratio, 0.6, "x", detail)


def paced(daemon: RunningDaemon, workspace: Path, rounds: int) -> Figure:
    """The same with 10 ms between commands, as a model's tool calls never are."""
    with _client(daemon, workspace) as client:
        found = compare(
            lambda: _true(client),
            lambda: run_quietly(raw_bwrap_argv()),
            rounds=rounds,
            batch=5,
            pause_s=0.01,
        )
    detail = f"{found.ours_ms:.2f} ms, raw bwrap {found.theirs_ms:.2f} ms"
    return Figure("warm, 10 ms apart", found.ratio, 0.75, "x", detail)


def cold(daemon: RunningDaemon, workspace: Path, rounds: int) -> Figure:
    """The first command of a session, its cell's start included."""

    def first() -> None:
        with _client(daemon, workspace) as client:
            _true(client)
            client.sessions.close(client.session.session_id)

    found = compare(
        first, lambda: run_quietly(raw_bwrap_argv()), rounds=max(rounds // 5, 3)
    )
    detail = f"{found.ours_ms:.1f} ms, raw bwrap {found.theirs_ms:.2f} ms"
    return Figure("first of a session", found.ratio, 15, "x", detail)


def throughput(daemon: RunningDaemon, workspace: Path, rounds: int) -> Figure:
    """Commands a second of 16 clients, against 16 threads that start bubblewrap."""
    clients, each = 16, max(rounds // 2, 10)

    def ours() -> None:
        with _client(daemon, workspace) as client:
            for _ in range(each):
                _true(client)

    def theirs() -> None:
        for _ in range(each):
            run_quietly(raw_bwrap_argv())

    rates: list[float] = []
    for side in (ours, theirs):
        start = time.perf_counter()
        _together(side, clients)
        rates.append(clients * each / (time.perf_counter() - start))
    detail = f"{rates[0]:.0f}/s, raw bwrap {rates[1]:.0f}/s"
    ratio = rates[0] / rates[1]
    return Figure("16 clients", ratio, 2, "x", detail, at_least=True)


def command_line(daemon: RunningDaemon, workspace: Path, rounds: int) -> Figure:
    """The whole process of `bashd run true`, against an interpreter that does little."""
    script = Path(sys.executable).with_name("bashd")
    bare = [sys.executable, "-c", "import argparse, json, os, socket"]
    argv = [str(script), "run", "--cwd", str(workspace), "--", "true"]
    found = compare(
        lambda: run_quietly(argv, env=daemon.caller_env()),
        lambda: run_quietly(bare),
        rounds=rounds,
    )
    detail = f"{found.ours_ms:.1f} ms, bare interpreter {found.theirs_ms:.1f} ms"
    return Figure("bashd run true", found.ratio, 2, "x", detail)


def output(daemon: RunningDaemon, workspace: Path, rounds: int) -> Figure:
    """A background task's output to its file, against `cat > file` on the same disk."""
    del rounds
    target = workspace / "copy"
    source = f"head -c {OUTPUT_BYTES} /dev/zero"
    start = time.perf_counter()
    run_quietly(["sh", "-c", f"{source} | cat > {target}"])
    theirs_s = time.perf_counter() - start
    target.unlink()
    before = _memory_bytes(daemon.pid, "VmHWM")
    with _client(daemon, workspace) as client:
        start = time.perf_counter()
        client.wait(client.start(source).task_id)
        ours_s = time.perf_counter() - start
        client.sessions.close(client.session.session_id)
    grown = (_memory_bytes(daemon.pid, "VmHWM") - before) / 1e6
    rates = [OUTPUT_BYTES / seconds / 1e6 for seconds in (ours_s, theirs_s)]
    detail = f"{rates[0]:.0f} MB/s, cat {rates[1]:.0f} MB/s; daemon grew {grown:.1f} MB"
    ratio = rates[0] / rates[1]
    return Figure("output to a file", ratio, 0.7, "x", detail, at_least=True)


def idle_daemon(daemon: RunningDaemon, workspace: Path, rounds: int) -> Figure:
    """Memory of the daemon alone, at rest."""
    del workspace, rounds
    size = _pss_bytes(daemon.pid) / 1e6
    return Figure("idle daemon", size, 45, "MB", "proportional set size")


def cell(daemon: RunningDaemon, workspace: Path, rounds: int) -> Figure:
    """Memory of one cell with its spares."""
    del rounds
    before = daemon.enclosure.pids()
    with _client(daemon, workspace) as client:
        _true(client)
        # Later spares are forked while the first command runs.
        time.sleep(0.5)
        pids = daemon.enclosure.pids() - before
        size = sum(_pss_bytes(pid) for pid in pids) / 1e6
        client.sessions.close(client.session.session_id)
    return Figure("a cell", size, 16, "MB", f"{len(pids)} processes")


BUDGETS: dict[str, Callable[[RunningDaemon, Path, int], Figure]] = {
    "idle": idle_daemon,
    "cell": cell,
    "warm": warm,
    "paced": paced,
    "cold": cold,
    "throughput": throughput,
    "cli": command_line,
    "output": output,
}
"""In the order in which they run: what is measured at rest comes first."""


def _client(
    daemon: RunningDaemon, workspace: Path
) -> contextlib.AbstractContextManager[SyncClient]:
    return connect_sync(str(daemon.socket), cwd=str(workspace), mode="workspace-write")


def _true(client: SyncClient) -> None:
    result = client.run("true")
    assert result.exit_code == 0, result


def _together(action: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=action) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _pss_bytes(pid: int) -> int:
    # Shared pages count by their share: forks of one interpreter share most of theirs.
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB$", rollup, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def _memory_bytes(pid: int, key: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{key}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def host() -> str:
    """Return what the figures were taken on, as one line."""
    release = Path("/proc/sys/kernel/osrelease").read_text().strip()
    bwrap = subprocess.run(["bwrap", "--version"], capture_output=True, check=True)
    python = ".".join(map(str, sys.version_info[:3]))
    return f"Linux {release}, {bwrap.stdout.decode().strip()}, Python {python}"
