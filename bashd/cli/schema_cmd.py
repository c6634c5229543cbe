"""``bashd schema``: the wire protocol, for clients in other languages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bashd.cli.parsing import add_command
from bashd.cli.report import print_text

if TYPE_CHECKING:
    import argparse

    from bashd.cli.parsing import Subparsers

_DESCRIPTION = """\
Print every message of the wire protocol as JSON Schema.

Its description says how the messages travel; that and the schema are all one needs to
write a client in another language.
"""

_EPILOG = """\
examples:
  bashd schema | jq -r .description
  bashd schema | jq '."$defs".RunResult'

exit status:
  0 done, 2 the words make no sense
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``schema``."""
    add_command(
        subparsers,
        "schema",
        summary="print the wire protocol as JSON Schema",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )


def run(_: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    from bashd.protocol.schema import wire_schema  # noqa: PLC0415 - loads msgspec

    print_text(json.dumps(wire_schema(), indent=2) + "\n")
    return 0
