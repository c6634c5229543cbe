"""``bashd kill``: end background tasks, whole trees of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bashd.cli.parsing import (
    add_client_options,
    add_command,
    add_json_option,
    open_link,
)
from bashd.cli.report import print_json, print_text

if TYPE_CHECKING:
    import argparse

    from bashd.cli.parsing import Subparsers

_EPILOG = """\
examples:
  bashd kill bash-3
  bashd ps --json | jq -r '.tasks[].task_id' | xargs bashd kill

exit status:
  0 done, also when it had already finished, 2 the words make no sense,
  125 bashd failed (the message says how), for example because there is no such task
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``kill``."""
    parser = add_command(
        subparsers,
        "kill",
        summary="end background tasks",
        description=(
            "End background tasks with everything they started: SIGTERM, some time to\n"
            "clean up, SIGKILL. Returns at once; `bashd wait` waits."
        ),
        epilog=_EPILOG,
    )
    parser.add_argument("tasks", metavar="TASK", nargs="+", help="an id such as bash-1")
    add_json_option(parser)
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    link = open_link(args)
    killed: dict[str, bool] = {}
    for task_id in args.tasks:
        killed[task_id] = link.call("task.kill", {"task_id": task_id})["killed"]
        if args.json:
            continue
        if killed[task_id]:
            print_text(f"killed background task {task_id}\n")
        else:
            print_text(f"task {task_id} had already finished\n")
    if args.json:
        print_json({"killed": killed})
    return 0
