"""``bashd logs``: a task's output from its start on, without moving anybody's cursor."""

from __future__ import annotations

from binascii import a2b_base64
from typing import TYPE_CHECKING, Any

from bashd.cli.parsing import add_client_options, add_command, open_link
from bashd.cli.steady import SteadyLink
from bashd.cli.terminal import OutputClosedError, Sink, open_missing_streams

if TYPE_CHECKING:
    import argparse

    from bashd.cli.parsing import Subparsers

_DESCRIPTION = """\
Print all that is kept of a background task's output.

What the model-facing tools have read or will read is not touched by this.
"""

_EPILOG = """\
examples:
  bashd logs bash-3
  bashd logs -f bash-3              and what comes, until the task has ended
  bashd logs --stderr bash-3

exit status:
  0 done, 2 the words make no sense, 125 bashd failed (the message says how),
  130 you pressed Ctrl-C; the task goes on
"""

_PIECE_BYTES = 1 << 20
"""Bytes asked for at once; well below what a message holds."""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``logs``."""
    parser = add_command(
        subparsers,
        "logs",
        summary="print a task's output",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("task", metavar="TASK", help="its id, such as bash-1")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on until the task has ended"
    )
    parser.add_argument(
        "--stderr", action="store_true", help="the stream of errors instead of stdout"
    )
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    open_missing_streams()
    link = SteadyLink(lambda: open_link(args))
    sink = Sink(1)
    params: dict[str, Any] = {
        "task_id": args.task,
        "stream": "stderr" if args.stderr else "stdout",
        "offset": 0,
        "limit_bytes": _PIECE_BYTES,
        "wait": args.follow,
    }
    try:
        while _print_piece(link.call("task.logs", params), params, sink):
            pass
        sink.finish()
    except OutputClosedError:
        # `bashd logs … | head` has seen enough.
        return 0
    return 0


def _print_piece(piece: dict[str, Any], params: dict[str, Any], sink: Sink) -> bool:
    """Print one piece, move *params* on; returns whether there is more to ask for."""
    missing = piece["offset"] - params["offset"]
    if missing > 0:
        Sink(2).write_line(f"[{missing} bytes are no longer kept]")
    sink.write(a2b_base64(piece["data_b64"]))
    params["offset"] = piece["next_offset"]
    if piece["next_offset"] < piece["total"]:
        return True
    return params["wait"] and not piece["settled"]
