"""``./dev bench``: measure bashd and its peers on this machine, and write a report.

Exit status: 0 when all budgets that were measured hold, 1 when one does not, 3 when a
part that should have worked failed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.benchmarks import capacity, footprint, growth, latency, machine, plot
from tests.benchmarks.bench import Bench, Stage
from tests.benchmarks.budgets import judge
from tests.benchmarks.peers import peers
from tests.benchmarks.plan import FULL, QUICK, TINY, Plan
from tests.benchmarks.report import Report, refresh
from tests.benchmarks.scene import Scene, may_realtime, scenes
from tests.benchmarks.toolbox import Toolbox, default_cache, fill

Work = Callable[[Bench, Scene, str], None]

AT_REST: dict[str, Work] = {"idle": footprint.idle}
"""First, while nothing else has touched the daemon."""
WORKS: dict[str, Work] = {
    "warm": latency.warm,
    "paced": latency.paced,
    "walls": latency.walls,
    "cold": latency.cold,
    "cli": latency.command_line,
    "mcp": latency.mcp,
    "rates": capacity.rates,
    "flood": capacity.flood,
    "output": capacity.output,
    "tasks": footprint.live_tasks,
    "many": footprint.many_commands,
}
"""In the order in which they run."""
GROWTH: dict[str, Work] = {
    "grow-sessions": growth.sessions,
    "grow-tasks": growth.tasks,
    "grow-files": growth.files,
    "grow-paths": growth.paths,
    "grow-rules": growth.rules,
}
"""In one setting only: what grows is the same for all."""
PLANS = {"full": FULL, "quick": QUICK, "tiny": TINY}
OVER, BROKEN = 1, 3


def main() -> int:
    """Parse, measure, write the report; return the exit status."""
    arguments = _parse()
    plan = _plan(arguments)
    if arguments.realtime and not may_realtime():
        print("bench: real-time priority is not permitted here", file=sys.stderr)
        return 2
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    described = machine.describe(realtime=arguments.realtime)
    bench = Bench(plan, Toolbox(), Random(arguments.seed))
    if not arguments.no_peers:
        cache = Path(arguments.cache or default_cache())
        bench.box = fill(cache, sys.executable, bench.say)
        for name, reason in bench.box.missing.items():
            bench.missed(name, reason)
    shown: dict[str, str] = {}
    with scenes(plan.accounts, realtime=arguments.realtime) as found:
        for scene in found:
            shown |= _configurations(bench, scene)
        _run(bench, _stages(found, plan, arguments.only))
    described["load at the end"] = " ".join(f"{v:.2f}" for v in os.getloadavg())
    described["took"] = f"{(time.monotonic() - bench.began) / 60:.1f} min"
    command = shlex.join(["./dev", "bench", *sys.argv[1:]])
    verdicts, missing = judge(bench.findings)
    report = Report(
        *(command, described, bench.box.versions, shown),
        *(bench.findings, verdicts, missing),
    )
    report.write(out)
    try:
        plot.draw(bench.findings, out / "report.png")
    except ImportError as error:
        bench.say(f"no plot: {error}")
    print(report.summary())
    if arguments.readme:
        refresh(Path(arguments.readme), report.summary())
    bench.say(f"written: {out}/report.md, report.json, report.png, summary.md")
    return _status(bench, all(verdict.kept for verdict in verdicts))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("./dev bench", description=__doc__)
    parser.add_argument(
        "--quick",
        dest="plan",
        action="store_const",
        const="quick",
        default="full",
        help="two or three minutes: one setting, fewer turns, shorter curves",
    )
    parser.add_argument("--plan", choices=list(PLANS), help=argparse.SUPPRESS)
    parser.add_argument(
        "--out",
        default="build/bench",
        metavar="DIR",
        help="for the report (%(default)s)",
    )
    parser.add_argument(
        "--readme", metavar="FILE", help="put the summary between the marks in there"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="WORK,…",
        help=f"of {', '.join([*AT_REST, *WORKS, *GROWTH])}",
    )
    parser.add_argument(
        "--accounts", metavar="NAME,…", help="of root, user; the other is left out"
    )
    parser.add_argument("--modes", metavar="NAME,…", help="of the confined modes")
    parser.add_argument(
        "--no-peers", action="store_true", help="only bash and bwrap beside bashd"
    )
    parser.add_argument(
        "--cache", metavar="DIR", help=f"for the peers' programs ({default_cache()})"
    )
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="run daemon and callers at SCHED_RR 10, so that what else runs on the"
        " machine disturbs less; everything else on it stands still meanwhile",
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="of the order of turns; else by chance"
    )
    arguments = parser.parse_args()
    arguments.only = [name for name in arguments.only.split(",") if name]
    if unknown := set(arguments.only) - {*AT_REST, *WORKS, *GROWTH}:
        parser.error(f"no such work: {', '.join(sorted(unknown))}")
    return arguments


def _plan(arguments: argparse.Namespace) -> Plan:
    plan = PLANS[arguments.plan]
    if os.geteuid() != 0:
        plan = replace(plan, accounts=("user",))
    if arguments.accounts:
        plan = replace(plan, accounts=tuple(arguments.accounts.split(",")))
    if arguments.modes:
        plan = replace(plan, modes=tuple(arguments.modes.split(",")))
    return plan


def _stages(found: list[Scene], plan: Plan, only: list[str]) -> list[Stage]:
    stages = [
        Stage(key, scene, mode, work)
        for works in (AT_REST, WORKS)
        for scene in found
        for mode in plan.modes
        for key, work in works.items()
    ]
    stages += [
        Stage(key, found[0], plan.modes[-1], work) for key, work in GROWTH.items()
    ]
    return [stage for stage in stages if not only or stage.key in only]


def _run(bench: Bench, stages: list[Stage]) -> None:
    for number, stage in enumerate(stages, 1):
        bench.say(f"{number} of {len(stages)}: {stage.title}")
        try:
            stage.run(bench, stage.scene, stage.mode)
        except PermissionError as error:
            reason = f"not everybody may look at that: {error}"
            bench.missed(stage.title, reason, broken=machine.MAY_LOOK)
        except Exception as error:  # noqa: BLE001 - reported; the others go on
            reason = f"{type(error).__name__}: {error}"
            bench.missed(stage.title, reason, broken=True)


def _configurations(bench: Bench, scene: Scene) -> dict[str, str]:
    return {
        f"{peer.name} ({scene.name}, {mode})": peer.shown
        for mode in bench.plan.modes
        for peer in peers(bench.box, scene.ground, mode)
    }


def _status(bench: Bench, kept: bool) -> int:
    if not kept:
        return OVER
    broken = any(absence.broken for absence in bench.findings.absences)
    return BROKEN if broken else 0


if __name__ == "__main__":
    sys.exit(main())
