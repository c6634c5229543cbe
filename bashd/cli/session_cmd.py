"""``bashd session``: long-lived contexts with a folder, a mode and tasks of their own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from bashd.cli.parsing import (
    add_client_options,
    add_command,
    add_json_option,
    open_link,
)
from bashd.cli.report import print_json, print_text
from bashd.cli.run_args import MODES
from bashd.cli.table import table_for_stdout
from bashd.cli.terminal import visible_line
from bashd.client.ambient import ambient_of
from bashd.client.folder import FAR_FOLDER, absolute

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from bashd.cli.parsing import Subparsers
    from bashd.client.link import Link

_DESCRIPTION = """\
Sessions: a folder, a mode, an environment, scratch space and background tasks.

`bashd run` has one for each folder without being asked; open your own to keep an
agent's work apart, or to change its mode from outside while it works.
"""

_EPILOG = """\
examples:
  id=$(bashd session open --cwd ~/project --mode workspace-write)
  bashd run --session $id make
  bashd session mode $id read-only       from the next command on
  bashd session mode $id default         back to the policy's or the daemon's
  bashd session approval $id never       nobody is asked, the answer is no
  bashd session close $id                ends its tasks, removes its files

exit status:
  0 done, 2 the words make no sense, 125 bashd failed (the message says how)
"""

_DEFAULT = "default"
"""Word for "no override"; no mode is called that."""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``session`` and its verbs."""
    parser = add_command(
        subparsers,
        "session",
        summary="open, list, switch and close sessions",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    opening = _add_verb(verbs, "open", "open a session and print its id", _open)
    opening.add_argument("--cwd", metavar="DIR", help="its root and default folder")
    opening.add_argument("--mode", metavar="MODE", choices=MODES, help=", ".join(MODES))
    opening.add_argument("--policy", metavar="NAME", help="policy of its commands")
    opening.add_argument(
        "--approval", metavar="WHEN", choices=("ask", "never"), help="ask or never"
    )
    _add_verb(verbs, "list", "list your sessions", _list)
    _add_verb(verbs, "show", "show one session", _show, with_id=True)
    mode = _add_verb(verbs, "mode", "change a session's mode", _mode, with_id=True)
    mode.add_argument(
        "mode",
        metavar="MODE",
        choices=(*MODES, _DEFAULT),
        help=f"{', '.join(MODES)}, or {_DEFAULT} to end the override",
    )
    approval = _add_verb(
        verbs, "approval", "say whether its calls may ask", _approval, with_id=True
    )
    approval.add_argument(
        "approval", metavar="WHEN", choices=("ask", "never"), help="ask or never"
    )
    _add_verb(verbs, "close", "end a session and all of it", _close, with_id=True)


def _add_verb(
    verbs: Subparsers,
    name: str,
    summary: str,
    action: Callable[[argparse.Namespace, Link], None],
    *,
    with_id: bool = False,
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=summary, description=summary.capitalize())
    if with_id:
        parser.add_argument("session_id", metavar="ID", help="the session's id")
    add_json_option(parser)
    add_client_options(parser)
    parser.set_defaults(action=action)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    args.action(args, open_link(args))
    return 0


def _open(args: argparse.Namespace, link: Link) -> None:
    far = link.far is not None
    ambient, removed = ambient_of({} if far else os.environ)
    params = {
        "cwd": (args.cwd or FAR_FOLDER) if far else absolute(args.cwd),
        "mode": args.mode,
        "policy": args.policy,
        "approval": args.approval,
        "ambient": ambient,
        "env_removed": removed,
    }
    info: dict[str, Any] = link.call("session.open", params)
    if args.json:
        print_json(info)
    else:
        print_text(f"{info['session_id']}\n")


def _list(args: argparse.Namespace, link: Link) -> None:
    answer: dict[str, Any] = link.call("session.list", {})
    if args.json:
        print_json(answer)
        return
    header = ("SESSION", "MODE", "POLICY", "TASKS", "FOLDER")
    rows = [
        (
            info["session_id"],
            info["mode"],
            info["policy"] or "-",
            str(info["running_tasks"]),
            info["cwd"],
        )
        for info in answer["sessions"]
    ]
    print_text(table_for_stdout(header, rows))


def _show(args: argparse.Namespace, link: Link) -> None:
    params = {"session_id": args.session_id}
    _print_info(link.call("session.get", params), as_json=args.json)


def _mode(args: argparse.Namespace, link: Link) -> None:
    mode = None if args.mode == _DEFAULT else args.mode
    params = {"session_id": args.session_id, "mode": mode}
    _print_info(link.call("session.set_mode", params), as_json=args.json)


def _approval(args: argparse.Namespace, link: Link) -> None:
    params = {"session_id": args.session_id, "approval": args.approval}
    _print_info(link.call("session.set_approval", params), as_json=args.json)


def _close(args: argparse.Namespace, link: Link) -> None:
    link.call("session.close", {"session_id": args.session_id})
    if args.json:
        print_json({"closed": args.session_id})


def _print_info(info: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(info)
        return
    overridden = " (override)" if info["mode_override"] else ""
    facts = {
        "session": info["session_id"],
        "folder": info["cwd"],
        "mode": f"{info['mode']}{overridden}",
        "policy": info["policy"] or "-",
        "writable": ", ".join(info.get("writable", ())) or "nothing",
        "approval": info.get("approval", "ask"),
        "tasks": str(info["running_tasks"]),
        "log": info["log_path"] or "-",
    }
    for name, value in facts.items():
        print_text(f"{name + ':':<10}{visible_line(value)}\n")
