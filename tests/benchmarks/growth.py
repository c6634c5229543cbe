"""What a warm command costs while everything else grows.

At every point of a curve raw bubblewrap takes turns with bashd: a machine that has
become slower meanwhile shows on both.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import OURS, Setting
from tests.benchmarks.latency import others
from tests.benchmarks.scene import Scene
from tests.benchmarks.stats import Effort

_FOLDER_FILES = 500
"""Files in one folder, about what large repositories have at most."""


def sessions(bench: Bench, scene: Scene, mode: str) -> None:
    """More and more sessions are open, each with a cell of its own."""
    with contextlib.ExitStack() as stack:
        keys = [stack.enter_context(scene.opened(mode))]
        for goal in bench.plan.sessions:
            while len(keys) < goal:
                keys.append(stack.enter_context(scene.opened(mode)))
                what = ["client", keys[-1], "true"]
                scene.driver.ask("time", what=what, count=1, pause_s=0)
            _point(bench, scene, mode, "grow-sessions", keys[0], goal)


def tasks(bench: Bench, scene: Scene, mode: str) -> None:
    """More and more background tasks are alive in another session."""
    alive = 0
    with scene.opened(mode) as busy, scene.opened(mode) as key:
        for goal in bench.plan.live_tasks:
            scene.driver.ask(
                "start", key=busy, command="exec sleep 3600", count=goal - alive
            )
            alive = goal
            _point(bench, scene, mode, "grow-tasks", key, goal)


def files(bench: Bench, scene: Scene, mode: str) -> None:
    """A workspace has more and more files."""
    folder = scene.sized("many")
    made = 0
    for goal in bench.plan.files:
        _make_files(folder, made, goal, scene)
        made = goal
        with scene.opened(mode, cwd=str(folder)) as key:
            _point(bench, scene, mode, "grow-files", key, goal)
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def paths(bench: Bench, scene: Scene, mode: str) -> None:
    """A policy masks more and more paths, all of which exist."""
    folder = scene.sized("secrets")
    _make_files(folder, 0, max(bench.plan.paths), scene)
    places = [_file(folder, number) for number in range(max(bench.plan.paths))]
    for goal in bench.plan.paths:
        listed = json.dumps([str(path) for path in places[:goal]])
        with _under_policy(scene, mode, f"masked = {listed}\n") as key:
            _point(bench, scene, mode, "grow-paths", key, goal)
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def rules(bench: Bench, scene: Scene, mode: str) -> None:
    """A policy has more and more command rules, none of which matches."""
    for goal in bench.plan.rules:
        text = "".join(
            f"[[command]]\npattern = '\\bprogram-{number}\\b'\naction = \"deny\"\n"
            'reason = "it is not wanted"\n'
            for number in range(goal)
        )
        with _under_policy(scene, mode, text) as key:
            _point(bench, scene, mode, "grow-rules", key, goal)


def _point(bench: Bench, scene: Scene, mode: str, work: str, key: str, at: int) -> None:
    contenders = [
        scene.driver.contender(OURS, ["client", key, "true"]),
        *others(bench, scene, mode, "bwrap"),
    ]
    effort = Effort(bench.plan.rounds, batch=10)
    bench.compare(work, Setting(scene.name, mode), contenders, effort, at)


@contextlib.contextmanager
def _under_policy(scene: Scene, mode: str, text: str) -> Generator[str, None, None]:
    config = scene.folder / "config"
    place = config / "bashd" / "policies"
    place.mkdir(parents=True, exist_ok=True)
    path = place / "grown.toml"
    path.write_text(f'mode = "{mode}"\n{text}')
    for made in (config, config / "bashd", place, path):
        os.chown(made, scene.account.uid, scene.account.gid)
    environ = scene.account.environment() | {"XDG_CONFIG_HOME": str(config)}
    with scene.opened(mode, policy="grown", environ=environ) as key:
        yield key


def _make_files(folder: Path, begin: int, end: int, scene: Scene) -> None:
    for number in range(begin, end):
        path = _file(folder, number)
        if not number % _FOLDER_FILES:
            path.parent.mkdir()
            os.chown(path.parent, scene.account.uid, scene.account.gid)
        path.touch()
        os.chown(path, scene.account.uid, scene.account.gid)


def _file(folder: Path, number: int) -> Path:
    return folder / f"folder-{number // _FOLDER_FILES}" / f"file-{number}"
