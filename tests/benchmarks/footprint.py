"""What the daemon and its cells cost: at rest, with much alive, after much work."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.benchmarks import machine
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import OURS, Setting
from tests.benchmarks.scene import Scene
from tests.benchmarks.stats import Summary

_SETTLE_S = 60
_REST_S = 11
"""A worker thread of trio's leaves after ten seconds without work."""
_BATCH = 500


def idle(bench: Bench, scene: Scene, mode: str) -> None:
    """The daemon at rest with one session and its cell, and that cell."""
    setting, daemon = Setting(scene.name, mode), scene.daemon

    def found(work: str, value: float) -> None:
        bench.found(work, setting, OURS, Summary.of([value]))

    before = daemon.enclosure.pids()
    with scene.opened(mode) as key:
        _run(scene, key, 1)
        # The spares of a cell are forked while its first command runs.
        pids = _settled(lambda: daemon.enclosure.pids() - before)
        found("cell-memory", sum(map(machine.pss_bytes, pids)) / 1e6)
        found("idle-memory", machine.pss_bytes(daemon.pid) / 1e6)
        # What the command before left to be done is not rest.
        time.sleep(min(_REST_S, 2 * bench.plan.idle_s))
        start = machine.usage(daemon.pid)
        time.sleep(bench.plan.idle_s)
        used = machine.used_since(start, daemon.pid)
        per_minute = 60 / bench.plan.idle_s
        found("idle-wakeups", used.switches * per_minute)
        found("idle-cpu", used.cpu_ns / 1e6 * per_minute)


def live_tasks(bench: Bench, scene: Scene, mode: str) -> None:
    """The daemon with many background tasks that do nothing."""
    plan, daemon = bench.plan, scene.daemon

    def found(work: str, value: float) -> None:
        setting = Setting(scene.name, mode)
        bench.found(work, setting, OURS, Summary.of([value]), plan.tasks)

    with scene.opened(mode) as key:
        tasks = scene.driver.ask(
            "start", key=key, command="echo alive; exec sleep 3600", count=plan.tasks
        )
        pid = daemon.pid
        readable = scene.driver.ask("readable", key=key, tasks=tasks)
        found("tasks-readable", 100 * readable / len(tasks))
        found("tasks-memory", machine.pss_bytes(pid) / 1e6)
        start = machine.usage(pid)
        for_s = min(10, plan.idle_s)
        time.sleep(for_s)
        used_ns = machine.used_since(start, pid).cpu_ns
        found("tasks-cpu", used_ns / for_s / 1e7)


def many_commands(bench: Bench, scene: Scene, mode: str) -> None:
    """What the daemon keeps of many commands, one after the other."""
    plan, pid = bench.plan, scene.daemon.pid
    with scene.opened(mode) as key:
        # Caches and pools that fill once are not growth.
        _run(scene, key, max(plan.commands // 20, 1))
        # A descriptor may be open a moment longer than its command, and the next spare,
        # which has four, comes a moment later.
        files = min(_settled(lambda: frozenset([machine.descriptors(pid)])))
        memory = machine.pss_bytes(pid)
        _run(scene, key, plan.commands)
        grown = (machine.pss_bytes(pid) - memory) / 1e6
        more = min(_settled(lambda: frozenset([machine.descriptors(pid) - files])))
    setting = Setting(scene.name, mode)
    for work, value in (("many-memory", grown), ("many-descriptors", more)):
        bench.found(work, setting, OURS, Summary.of([value]), plan.commands)


def _run(scene: Scene, key: str, commands: int) -> None:
    what = ["client", key, "true"]
    for begin in range(0, commands, _BATCH):
        count = min(_BATCH, commands - begin)
        scene.driver.ask("time", what=what, count=count, pause_s=0)


def _settled(look: Callable[[], frozenset[int]]) -> frozenset[int]:
    """Return what is seen once it has stayed the same for a second."""
    deadline = time.monotonic() + _SETTLE_S
    seen, since = look(), time.monotonic()
    while time.monotonic() - since < 1 and time.monotonic() < deadline:
        time.sleep(0.1)
        now = look()
        if now != seen:
            seen, since = now, time.monotonic()
    return seen
