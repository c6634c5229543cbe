"""``bashd explain``: what refused a command, and the policy line that would allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bashd.cli.parsing import (
    add_client_options,
    add_command,
    add_json_option,
    open_link,
)
from bashd.cli.report import print_json, print_text
from bashd.cli.terminal import open_missing_streams, visible_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from bashd.cli.parsing import Subparsers

_DESCRIPTION = """\
Say what a command was refused, by which rule of which policy file, and the narrowest
line of a policy that would allow it. Without an id: your command that settled last.

Nothing is allowed by asking. --policy prints a policy for review; where a line would
open more than was refused, a comment says so.
"""

_EPILOG = """\
examples:
  bashd explain                        the command that settled last
  bashd explain bash-3                 a background task, also while it runs
  bashd explain 5d41402abc4b2a76       a run id, as `bashd run --json` prints it
  bashd explain --policy > ~/.config/bashd/policies/build.toml
  bashd policy check build             then review it, and: bashd run --policy build …

exit status:
  0 done, 2 the words make no sense, 125 bashd failed (the message says how),
  1 with --policy, when no policy would allow what was refused, or nothing was
"""

_NOTHING = 1


def add_parser(subparsers: Subparsers) -> None:
    """Add ``explain``."""
    parser = add_command(
        subparsers,
        "explain",
        summary="say what refused a command, and what would allow it",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "id", nargs="?", metavar="RUN|TASK", help="a run id, or a task id like bash-1"
    )
    parser.add_argument(
        "--policy", action="store_true", help="print a policy that would allow it"
    )
    add_json_option(parser)
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    open_missing_streams()
    found: dict[str, Any] = open_link(args).call("run.explain", {"id": args.id})
    if args.json:
        print_json(found)
        return 0
    if not args.policy:
        print_text("".join(f"{line}\n" for line in _report(found)))
        return 0
    if found["policy_toml"] is None:
        why = "nothing was refused" if not found["refusals"] else "no policy allows it"
        print_text(f"# run {found['run_id']}: {why}\n")
        return _NOTHING
    print_text(found["policy_toml"])
    return 0


def _report(found: dict[str, Any]) -> Iterator[str]:
    name = f"task {found['task_id']}, " if found["task_id"] else ""
    yield visible_line(f"{name}run {found['run_id']}: {found['command']}")
    yield visible_line(f"  in {found['workdir']}, {_end(found)}")
    walls = found["runner"] or "not confined"
    yield visible_line(
        f"  mode {found['mode']}, policy {found['policy']}, runner {walls};"
        f" writable: {', '.join(found['writable']) or 'nothing'}"
    )
    yield f"  verdict: {_VERDICTS.get(found['verdict'], found['verdict'])}"
    for refusal in found["refusals"]:
        yield ""
        yield from _refusal(refusal)
    if found["hints"]:
        yield ""
    for hint in found["hints"]:
        yield visible_line(f"  {hint}")
    if found["records"] and found["runner"]:
        yield ""
        yield visible_line(
            f"  What was refused is read from stderr: {found['records']}."
        )
        yield "  `bashd doctor` says how to have the kernel prove it."


_VERDICTS = {
    "none": "nothing was refused",
    "denied": "denied",
    "suspected": "denied, as far as its stderr tells",
    "unknown": "unknown: records of the kernel's were lost",
}


def _end(found: dict[str, Any]) -> str:
    if found["running"]:
        return "still running"
    if found["signal"] is not None:
        return f"killed by {found['signal']}"
    return f"exit code {found['exit_code']}"


def _refusal(refusal: dict[str, Any]) -> Iterator[str]:
    what = f"{refusal['operation'] or 'access'} {refusal['path'] or ''}".rstrip()
    by = f" by {refusal['process']}" if refusal["process"] else ""
    yield visible_line(f"  refused: {what}{by} ({refusal['evidence']})")
    sources = ", ".join(refusal["sources"])
    yield visible_line(
        f"    rule: {refusal['rule']}{f', {sources}' if sources else ''}"
    )
    if refusal["allow"]:
        yield visible_line(f"    allow: {refusal['allow']}")
    if refusal["note"]:
        yield visible_line(f"    note: {refusal['note']}")
