"""How much goes through at once: commands of many clients, output, both together."""

from __future__ import annotations

import os
import time
from typing import Any

from tests.benchmarks import machine
from tests.benchmarks.bench import Bench
from tests.benchmarks.drivers import Driver
from tests.benchmarks.figures import OURS, Setting
from tests.benchmarks.peers import bwrap_argv
from tests.benchmarks.scene import Scene
from tests.benchmarks.stats import Summary

_PROCESSES = 16
"""More clients than this share processes, as threads: memory for 64 is not at issue."""
_WARM_UP_S = 0.5
_CELL_S = 0.08
_CALLS = 25
"""Of the other session, in each round of a flood."""


def rates(bench: Bench, scene: Scene, mode: str) -> None:
    """Commands a second of some clients, each in a session of its own."""
    cwd = str(scene.ground.workspace)
    whats: dict[str, list[Any]] = {
        OURS: ["own_client", scene.options(mode), "true"],
        "bwrap": ["spawn", bwrap_argv(scene.ground, mode), None, cwd],
    }
    for clients in bench.plan.clients:
        samples: dict[str, list[float]] = {name: [] for name in whats}
        for _ in range(bench.plan.rate_rounds):
            for name in bench.rng.sample(list(whats), len(whats)):
                rate = _rate(bench, scene, whats[name], clients)
                samples[name].append(rate)
        for name, found in samples.items():
            work, setting = f"rate-{clients}", Setting(scene.name, mode)
            bench.found(work, setting, name, Summary.of(found))


def _rate(bench: Bench, scene: Scene, what: list[Any], clients: int) -> float:
    processes = min(clients, _PROCESSES)
    drivers = [scene.driver_with("", number) for number in range(processes)]
    # Cells take a while, all at once on a small machine; a program has none to make.
    warm_up_s = _WARM_UP_S + (clients * _CELL_S if what[0] == "own_client" else 0)
    for driver in drivers:
        driver.begin(
            "rate",
            what=what,
            threads=clients // processes,
            warm_up_s=warm_up_s,
            for_s=bench.plan.rate_s,
            at=time.monotonic(),
        )
    return sum(driver.end() for driver in drivers) / bench.plan.rate_s


def output(bench: Bench, scene: Scene, mode: str) -> None:
    """One command's output to its file, and `cat` to one on the same disk."""
    plan, setting = bench.plan, Setting(scene.name, mode)
    source = f"head -c {plan.output_mb}000000 /dev/zero"
    target = scene.ground.workspace / "copy"
    copy = ["sh", "-c", f"{source} | cat > {target}"]
    rates: dict[str, list[float]] = {OURS: [], "cat > file": []}
    grown: list[float] = []

    def ours() -> float:
        with scene.opened(mode) as key:
            scene.driver.ask("time", what=["client", key, "true"], count=1, pause_s=0)
            if not machine.MAY_LOOK:
                return scene.driver.ask("stream", key=key, command=source)
            machine.forget_peak(scene.daemon.pid)
            start = machine.peak_bytes(scene.daemon.pid)
            seconds = scene.driver.ask("stream", key=key, command=source)
            grown.append((machine.peak_bytes(scene.daemon.pid) - start) / 1e6)
        return seconds

    def theirs() -> float:
        what = ["spawn", copy, None, None]
        (seconds,) = scene.driver.ask("time", what=what, count=1, pause_s=0)
        target.unlink()
        return seconds

    sides = {OURS: ours, "cat > file": theirs}
    for _ in range(plan.output_rounds):
        for name in bench.rng.sample(list(sides), len(sides)):
            os.sync()  # nobody pays for what the one before left to be written
            rates[name].append(plan.output_mb / sides[name]())
    for name, found in rates.items():
        bench.found("output", setting, name, Summary.of(found), plan.output_mb)
    if grown:
        bench.found("output-memory", setting, OURS, Summary.of(grown), plan.output_mb)


def flood(bench: Bench, scene: Scene, mode: str) -> None:
    """A session's `true` while another session writes without pause, and when not."""
    samples: dict[str, list[float]] = {OURS: [], "bashd, quiet": []}
    driver = scene.driver
    with scene.opened(mode) as calm:
        what = ["client", calm, "true"]
        _times(driver, what)
        for _ in range(bench.plan.flood_rounds):
            for name in bench.rng.sample(list(samples), len(samples)):
                if name == OURS:
                    samples[name] += _times_in_flood(scene, mode, what)
                else:
                    samples[name] += _times(driver, what)
    for name, found in samples.items():
        summary = Summary.of(found).scaled(1000)
        bench.found("flood", Setting(scene.name, mode), name, summary)


def _times_in_flood(scene: Scene, mode: str, what: list[Any]) -> list[float]:
    # A session a round: closing it gives back what was written.
    with scene.opened(mode) as noisy:
        (task,) = scene.driver.ask("start", key=noisy, command="yes", count=1)
        time.sleep(0.3)
        found = _times(scene.driver, what)
        scene.driver.ask("kill", key=noisy, tasks=[task])
    return found


def _times(driver: Driver, what: list[Any]) -> list[float]:
    return driver.ask("time", what=what, count=_CALLS, pause_s=0)
