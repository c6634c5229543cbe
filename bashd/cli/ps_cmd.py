"""``bashd ps``: what runs in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bashd.cli.parsing import (
    add_client_options,
    add_command,
    add_json_option,
    open_link,
)
from bashd.cli.report import print_json, print_text
from bashd.cli.table import amount, duration, table_for_stdout

if TYPE_CHECKING:
    import argparse

    from bashd.cli.parsing import Subparsers

_EPILOG = """\
examples:
  bashd ps                     running tasks of all your sessions
  bashd ps --all               finished ones too
  bashd ps --json | jq -r '.tasks[].task_id'

exit status:
  0 done, 2 the words make no sense, 125 bashd failed (the message says how)
"""

KEYS: Final = (
    "task_id",
    "session_id",
    "command",
    "status",
    "exit_code",
    "signal",
    "started_at",
    "age_s",
    "stdout_bytes",
    "stderr_bytes",
    "cpu_ms",
    "rss_bytes",
    "ports",
)
"""Keys of one task in ``bashd ps --json``."""

_HEADER: Final = (
    "TASK",
    "STATUS",
    "AGE",
    "CPU",
    "MEMORY",
    "OUTPUT",
    "PORTS",
    "COMMAND",
)


def add_parser(subparsers: Subparsers) -> None:
    """Add ``ps``."""
    parser = add_command(
        subparsers,
        "ps",
        summary="list background tasks",
        description="List background tasks, oldest first.",
        epilog=_EPILOG,
    )
    parser.add_argument("--all", action="store_true", help="finished tasks too")
    parser.add_argument("--session", metavar="ID", help="only tasks of this session")
    add_json_option(parser)
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    params: dict[str, Any] = {"all": args.all, "session_id": args.session}
    tasks: list[dict[str, Any]] = open_link(args).call("task.list", params)["tasks"]
    if args.json:
        print_json({"tasks": [{key: task.get(key) for key in KEYS} for task in tasks]})
    else:
        print_text(table_for_stdout(_HEADER, [_row(task) for task in tasks]))
    return 0


def _row(task: dict[str, Any]) -> tuple[str, ...]:
    return (
        task["task_id"],
        status_words(task),
        duration(task["age_s"]),
        duration(task.get("cpu_ms", 0) / 1000),
        amount(task.get("rss_bytes", 0)),
        amount(task.get("stdout_bytes", 0) + task.get("stderr_bytes", 0)),
        ",".join(map(str, task.get("ports", ()))) or "-",
        task["command"],
    )


def status_words(task: dict[str, Any]) -> str:
    """Return a task's state in a word or two: ``running``, ``exit 2``, ``SIGKILL``."""
    if task["signal"] is not None:
        return task["signal"]
    if task["exit_code"] is not None:
        return f"exit {task['exit_code']}"
    return task["status"]
