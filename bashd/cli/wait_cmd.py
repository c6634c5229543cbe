"""``bashd wait``: end as a background task ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bashd.cli.outcome import FAILURE_STATUS, exit_status, task_markers
from bashd.cli.parsing import (
    add_client_options,
    add_command,
    add_json_option,
    open_link,
)
from bashd.cli.report import print_json
from bashd.cli.steady import SteadyLink
from bashd.cli.terminal import OutputClosedError, Sink, open_missing_streams

if TYPE_CHECKING:
    import argparse

    from bashd.cli.parsing import Subparsers

_EPILOG = """\
examples:
  id=$(bashd run --background make) && bashd wait $id && echo built

exit status:
  the task's own, or 128+N when signal N ended it, or
  2 the words make no sense, 125 bashd failed or the task never ran,
  130 you pressed Ctrl-C; the task goes on
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``wait``."""
    parser = add_command(
        subparsers,
        "wait",
        summary="wait for a task and end as it did",
        description="Wait until a background task has ended and take its exit status.",
        epilog=_EPILOG,
    )
    parser.add_argument("task", metavar="TASK", help="its id, such as bash-1")
    add_json_option(parser)
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    open_missing_streams()
    link = SteadyLink(lambda: open_link(args))
    task: dict[str, Any] = link.call("task.wait", {"task_id": args.task})
    if args.json:
        print_json(task)
    else:
        _tell(task_markers(task))
    sandbox: dict[str, Any] = task.get("sandbox") or {}
    return FAILURE_STATUS if sandbox.get("runner_failed") else exit_status(task)


def _tell(lines: list[str]) -> None:
    sink = Sink(2)
    try:
        for line in lines:
            sink.write_line(line)
    except OutputClosedError:
        return
