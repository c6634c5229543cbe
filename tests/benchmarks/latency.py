"""How long one caller waits for one command."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Generator
from typing import Any

from tests.benchmarks.bench import Bench
from tests.benchmarks.drivers import DriverError
from tests.benchmarks.figures import OURS, Setting
from tests.benchmarks.peers import peers
from tests.benchmarks.scene import Scene, script
from tests.benchmarks.stats import Contender, Effort, Summary
from tests.support.daemons import DaemonFailedError

_LANDLOCK = "bashd on landlock"
_FREE = "danger-full-access"
_PACE_S = 0.01
BARE = "import argparse, json, os, socket"
"""What an interpreter loads at least for a command line that talks to a socket."""


def warm(bench: Bench, scene: Scene, mode: str) -> None:
    """A warm confined `true`, back to back."""
    _warm(bench, scene, mode, "warm", Effort(bench.plan.rounds, batch=20))


def paced(bench: Bench, scene: Scene, mode: str) -> None:
    """The same with a pause before each."""
    effort = Effort(bench.plan.rounds, batch=10, pause_s=_PACE_S)
    _warm(bench, scene, mode, "paced", effort)


def walls(bench: Bench, scene: Scene, mode: str) -> None:
    """A warm `true` behind the walls less one without any, of the same daemon."""
    added: list[float] = []
    with scene.opened(mode) as confined, scene.opened(_FREE) as free:
        for number in range(bench.plan.rounds + 1):
            took: dict[str, float] = {}
            for key in bench.rng.sample([confined, free], 2):
                what = ["client", key, "true"]
                times = scene.driver.ask("time", what=what, count=20, pause_s=0)
                took[key] = statistics.median(times)
            if number:  # in the first, caches, cells and connections are made
                added.append((took[confined] - took[free]) * 1000)
    bench.found("walls", Setting(scene.name, mode), OURS, Summary.of(added))


def cold(bench: Bench, scene: Scene, mode: str) -> None:
    """The first command of a session, its cell's start included."""
    ours = scene.driver.contender(OURS, ["cold", scene.options(mode)])
    rivals = others(bench, scene, mode, "bwrap")
    effort = Effort(bench.plan.slow_rounds, turn_s=1)
    bench.compare("cold", Setting(scene.name, mode), [ours, *rivals], effort)


def command_line(bench: Bench, scene: Scene, mode: str) -> None:
    """The whole process of `bashd run true`."""
    # As the account is, and to this daemon: nothing of whoever runs the benchmark.
    env = scene.daemon.caller_env()
    cwd = str(scene.ground.workspace)
    argv = [*script(scene), "run", "--mode", mode, "--cwd", cwd, "--", "true"]
    bare = [scene.install.python, "-c", BARE]
    contenders = [
        scene.driver.contender(OURS, ["spawn", argv, env, cwd]),
        scene.driver.contender("bare python3", ["spawn", bare, None, cwd]),
        *others(bench, scene, mode, "bwrap", "codex", "srt"),
    ]
    effort = Effort(bench.plan.slow_rounds, batch=2, turn_s=1)
    bench.compare("cli", Setting(scene.name, mode), contenders, effort)


def mcp(bench: Bench, scene: Scene, mode: str) -> None:
    """A tool call over stdio, beside the same command of the library."""
    cwd = str(scene.ground.workspace)
    # The mode of a tool call that asks for none is the session's.
    argv = [scene.install.python, "-P", "-m", "bashd", "mcp", "--cwd", cwd]
    argv += ["--mode", mode]
    driver, key = scene.driver, f"mcp-{mode}"
    driver.ask("serve", key=key, argv=argv, env=scene.daemon.caller_env())
    try:
        with scene.opened(mode) as session:
            contenders = [
                driver.contender(OURS, ["mcp", key, "true"]),
                driver.contender("bashd, library", ["client", session, "true"]),
                *others(bench, scene, mode, "bwrap"),
            ]
            effort = Effort(bench.plan.slow_rounds, batch=10)
            bench.compare("mcp", Setting(scene.name, mode), contenders, effort)
    finally:
        driver.ask("close", key=key)


def others(
    bench: Bench, scene: Scene, mode: str, *names: str
) -> Generator[Contender, None, None]:
    """Give the peers of these names, or all."""
    for peer in peers(bench.box, scene.ground, mode):
        if not names or peer.name in names:
            driver = scene.driver_with(peer.own_python)
            yield driver.contender(peer.name, peer.what)


def _warm(bench: Bench, scene: Scene, mode: str, work: str, effort: Effort) -> None:
    with contextlib.ExitStack() as stack:

        def ours(name: str, **options: Any) -> Contender:
            key = stack.enter_context(scene.opened(mode, **options))
            return scene.driver.contender(name, ["client", key, "true"])

        contenders = [ours(OURS)]
        try:
            contenders.append(ours(_LANDLOCK, runner="landlock"))
        except (DriverError, DaemonFailedError) as error:
            bench.missed(_LANDLOCK, str(error).partition("\n")[0])
        contenders += others(bench, scene, mode)
        bench.compare(work, Setting(scene.name, mode), contenders, effort)
