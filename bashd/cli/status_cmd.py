"""``bashd status``: whether a daemon is there, and how it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bashd.cli.parsing import add_command, add_json_option, add_socket_options
from bashd.cli.report import print_json, print_text
from bashd.cli.table import duration
from bashd.cli.terminal import visible_line
from bashd.client.link import Link

if TYPE_CHECKING:
    import argparse

    from bashd.cli.parsing import Subparsers

_EPILOG = """\
examples:
  bashd status
  bashd status --json | jq .tasks

exit status:
  0 a daemon answers, 2 the words make no sense, 125 none does
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``status``."""
    parser = add_command(
        subparsers,
        "status",
        summary="say whether a daemon is there, and how it is",
        description="Say how the daemon is that your commands go to. Starts none.",
        epilog=_EPILOG,
    )
    add_json_option(parser)
    add_socket_options(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    link = Link.reach(
        args.socket, host=args.host, autostart=False, client="bashd status"
    )
    status: dict[str, Any] = link.call("daemon.status", {})
    if args.json:
        print_json(status)
        return 0
    facts = {
        "socket": link.far.host if link.far else link.connection.getpeername(),
        "version": status["version"],
        "pid": str(status["pid"]),
        "up": duration(status["uptime_s"]),
        "runner": status["runner"] or "none: nothing can be confined, see bashd doctor",
        "denials": f"what stderr says: {status['records']}"
        if status.get("records")
        else "what the kernel records, and stderr",
        "sessions": str(status["sessions"]),
        "cells": str(status["cells"]),
        "tasks": str(status["tasks"]),
    }
    for name, value in facts.items():
        print_text(f"{name + ':':<10}{visible_line(value)}\n")
    return 0
