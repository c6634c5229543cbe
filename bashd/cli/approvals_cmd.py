"""``bashd approvals``, ``approve``, ``reject``: the person's end of a question.

A client without a dialog of its own has its questions asked here. Somebody has to watch
(`bashd.cli.watching`), or the daemon answers that nobody is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bashd.cli.parsing import (
    add_client_options,
    add_command,
    add_json_option,
    open_link,
)
from bashd.cli.question import ALLOWED_ONCE, REJECTED, question_block
from bashd.cli.report import print_json, print_text
from bashd.cli.terminal import open_missing_streams

if TYPE_CHECKING:
    import argparse

    from bashd.cli.parsing import Subparsers

_DESCRIPTION = """\
Show the questions of your sessions that wait for a person: which command wants to run,
where, in which wider mode, and why.

With --watch it stays and shows them as they come. On a terminal it asks at once; there
and nowhere else it takes answers. Without anybody who watches, a question that no other
dialog shows is answered at once: there is nobody to ask.
"""

_EPILOG = """\
examples:
  bashd approvals --watch            in a terminal beside the agent's
  bashd approvals                    what waits now
  bashd approve a-5d41402abc4b       let that command run, this once
  bashd approvals --watch --json     one object a line, for a program that notifies you:
                                     "watching", then "asked" and "settled"

exit status:
  0 done, 2 the words make no sense, 125 bashd failed (the message says how),
  130 you pressed Ctrl-C; what waits goes on waiting
"""

_ANSWER_EPILOG = """\
examples:
  bashd approvals --watch --json &   somebody has to watch
  bashd approve a-5d41402abc4b
  bashd reject a-5d41402abc4b

exit status:
  0 done, 2 the words make no sense, 125 bashd failed (the message says how), for
  example because the question was answered or withdrawn meanwhile
"""

_ANSWERS: Final = {
    "approve": ("allow one waiting command to run, once", ALLOWED_ONCE),
    "reject": ("refuse one waiting command", REJECTED),
}


def add_parser(subparsers: Subparsers) -> None:
    """Add ``approvals``, ``approve`` and ``reject``."""
    parser = add_command(
        subparsers,
        "approvals",
        summary="show, and answer, what waits for a person",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--watch", action="store_true", help="stay, and show questions as they come"
    )
    add_json_option(parser)
    add_client_options(parser)
    for name, (summary, _) in _ANSWERS.items():
        answer = add_command(
            subparsers,
            name,
            summary=summary,
            description=f"{summary.capitalize()}. `bashd approvals` shows what waits.",
            epilog=_ANSWER_EPILOG,
        )
        answer.add_argument("approval_id", metavar="ID", help="such as a-5d41402abc4b")
        add_json_option(answer)
        add_client_options(answer)


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    # Before the socket, which would be given a number that a stream should have.
    open_missing_streams()
    if args.subcommand in _ANSWERS:
        return _answer(args, _ANSWERS[args.subcommand][1])
    if args.watch:
        from bashd.cli.watching import watch  # noqa: PLC0415 - for this option alone

        return watch(open_link(args), as_json=args.json)
    return _list(args)


def _answer(args: argparse.Namespace, outcome: str) -> int:
    params = {"approval_id": args.approval_id, "outcome": outcome}
    open_link(args).call("approval.decide", params)
    if args.json:
        print_json(params)
    return 0


def _list(args: argparse.Namespace) -> int:
    answer: dict[str, Any] = open_link(args).call("approval.list", {})
    if args.json:
        print_json(answer)
        return 0
    for info in answer["approvals"]:
        print_text(f"{question_block(info)}\n\n")
    return 0
