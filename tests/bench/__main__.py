"""``./dev bench``: measure the budgets on a daemon started for it.

Ratios travel between machines, times do not; both are shown. The exit status is 1 when
a budget is not kept and ``--strict`` was given.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.bench.budgets import BUDGETS, Figure, host
from tests.support.accounts import current_account
from tests.support.daemons import start_daemon
from tests.support.stage import Install


def main() -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser("dev bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BUDGETS))
    parser.add_argument(
        "--rounds", type=int, default=40, help="turns of each side (40)"
    )
    parser.add_argument(
        "--runner", default="auto", choices=["auto", "bwrap", "landlock"]
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--strict", action="store_true", help="fail over budget")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BUDGETS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    figures = measure(arguments)
    return int(arguments.strict and not all(figure.kept for figure in figures))


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Start a daemon of this account, run what was asked for, and stop it."""
    figures: list[Figure] = []
    account = current_account()
    install = Install(sys.executable, staged=False, reason="measured as it is")
    # Not /tmp, which is often memory: output is compared on a disk.
    with tempfile.TemporaryDirectory(prefix="bashd-bench-", dir="/var/tmp") as name:
        daemon = start_daemon(
            Path(name) / secrets.token_hex(4),
            install,
            account=account,
            runner=arguments.runner,
            # The spill cap must not cut what is measured.
            settings={"executor": {"max_spill_bytes": 8 << 30}},
        )
        try:
            workspace = daemon.make_workspace()
            print(host(), file=sys.stderr)
            for key in arguments.names or BUDGETS:
                figure = BUDGETS[key](daemon, workspace, arguments.rounds)
                figures.append(figure)
                print(line(figure, as_json=arguments.json), flush=True)
        finally:
            daemon.stop()
            daemon.remove_folders()
    return figures


def line(figure: Figure, *, as_json: bool) -> str:
    """Return what is printed for *figure*."""
    if as_json:
        return json.dumps(asdict(figure) | {"kept": figure.kept})
    verdict = "ok  " if figure.kept else "OVER"
    bound = ">=" if figure.at_least else "<="
    value = f"{figure.value:6.2f} {figure.unit:<2} ({bound} {figure.budget:g})"
    return f"{verdict} {figure.name:<20} {value:<22} {figure.detail}"


if __name__ == "__main__":
    sys.exit(main())
