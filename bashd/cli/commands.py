"""The table of subcommands, and the argparse parser over them.

Each subcommand is a module with ``add_parser(subparsers)`` and ``run(args) -> int``.
Only the one that was named is imported; ``bashd --help`` and completion load them all.
"""

from __future__ import annotations

import importlib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Final

from bashd import __version__
from bashd.cli.report import report_failure
from bashd.core.errors import BashdError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

COMMANDS: Final[Mapping[str, str]] = {
    "run": "run_cmd",
    "ps": "ps_cmd",
    "logs": "logs_cmd",
    "wait": "wait_cmd",
    "kill": "kill_cmd",
    "explain": "explain_cmd",
    "audit": "audit_cmd",
    "session": "session_cmd",
    "approvals": "approvals_cmd",
    "approve": "approvals_cmd",
    "reject": "approvals_cmd",
    "status": "status_cmd",
    "top": "top_cmd",
    "serve": "serve_cmd",
    "dial-stdio": "dial_cmd",
    "policy": "policy_cmd",
    "doctor": "doctor_cmd",
    "mcp": "mcp_cmd",
    "mcp-config": "mcp_cmd",
    "ci": "ci_cmd",
    "schema": "schema_cmd",
    "completion": "completion_cmd",
    "install": "install_cmd",
    "uninstall": "install_cmd",
}
"""Subcommand to its module in `bashd.cli`, in the order of the help."""

USAGE_STATUS: Final = 2
"""Exit status for words that make no sense; as argparse has it."""

_DESCRIPTION = """\
Run bash commands in warm confined cells, through a daemon.

Nothing needs to be set up: the first command starts a daemon for you, which leaves
when it is idle.
"""

_EPILOG = """\
examples:
  bashd run ls -l                                   read, but write nowhere
  bashd run --mode workspace-write -- make test     write below this folder only
  bashd run --background ./long-job                 prints a task id: bash-1
  bashd ps; bashd logs -f bash-1; bashd wait bash-1
  bashd doctor                                      how well this machine confines

`bashd COMMAND --help` has examples and exit statuses of each command.
"""


def dispatch(words: Sequence[str]) -> int:
    """Do what *words* say; returns the exit status."""
    name = next((word for word in words if not word.startswith("-")), None)
    parser = build_parser([name] if name in COMMANDS else list(COMMANDS))
    args = parser.parse_args(words)
    if args.subcommand is None:
        parser.print_help()
        return USAGE_STATUS
    try:
        return _module(COMMANDS[args.subcommand]).run(args)
    except BashdError as error:
        return report_failure(error, as_json=getattr(args, "json", False))


def build_parser(names: Sequence[str]) -> ArgumentParser:
    """Return the parser for the subcommands *names*."""
    parser = ArgumentParser(
        prog="bashd",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bashd {__version__}")
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND")
    for module in dict.fromkeys(COMMANDS[name] for name in names):
        _module(module).add_parser(commands)
    return parser


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"bashd.cli.{name}")
