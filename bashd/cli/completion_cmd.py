"""``bashd completion``: shell completion for every subcommand and option."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bashd.cli.parsing import add_command
from bashd.cli.report import print_text

if TYPE_CHECKING:
    import argparse

    from bashd.cli.parsing import Subparsers

_EPILOG = """\
examples:
  bashd completion bash > ~/.local/share/bash-completion/completions/bashd
  bashd completion zsh > ~/.zfunc/_bashd           with ~/.zfunc in $fpath
  bashd completion fish > ~/.config/fish/completions/bashd.fish

exit status:
  0 done, 2 the words make no sense
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``completion``."""
    parser = add_command(
        subparsers,
        "completion",
        summary="print a completion script for a shell",
        description="Print a completion script for a shell.",
        epilog=_EPILOG,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    import shtab  # noqa: PLC0415 - for this command alone

    from bashd.cli.commands import COMMANDS, build_parser  # noqa: PLC0415

    print_text(shtab.complete(build_parser(list(COMMANDS)), shell=args.shell))
    return 0
