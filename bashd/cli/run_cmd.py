"""``bashd run``: one command through the daemon, as if it had been run here.

Nothing above `bashd.client.link` is loaded on this path, and no argparse but for help:
the whole process should cost little more than its interpreter.
"""

from __future__ import annotations

import os
import sys
from binascii import b2a_base64

from bashd.cli.interrupts import Interrupts
from bashd.cli.outcome import exit_status, markers
from bashd.cli.report import print_json, print_text, report_failure
from bashd.cli.run_args import MODES, OPTIONS, RunArgs, parse_run
from bashd.cli.terminal import open_missing_streams
from bashd.client.ambient import ambient_of
from bashd.client.folder import FAR_FOLDER, absolute
from bashd.client.link import Link
from bashd.client.reach import chosen_host
from bashd.core.errors import BashdError, HostError, LimitError

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final

    from bashd.cli.parsing import Subparsers
_SIGPIPE_STATUS: Final = 128 + 13
"""What a shell sees of a program whose reader has gone."""

MAX_BACKGROUND_STDIN_BYTES: Final = 8 * 1024 * 1024
"""A background task's stdin travels in one message."""

_DESCRIPTION = """\
Run a command confined and see its output as it comes.

One word is handed to bash as it is, several are quoted and joined; everything after
the first word that is no option belongs to the command.
"""

_EPILOG = """\
examples:
  bashd run ls -l
  bashd run 'make test 2>&1 | tail -20'
  bashd run --mode workspace-write --cwd ~/project -- npm ci
  bashd run --timeout 2.5 --json -- ./slow-script
  tar c . | bashd run --stdin 'tar t | wc -l'
  bashd run -t --mode workspace-write -- vim notes
  id=$(bashd run --background --mode workspace-write make) && bashd logs -f $id

exit status:
  the command's own, or
  124   its time was over, or that of its job
  125   bashd itself failed; the command did not run, or its fate is unknown
  128+N it was ended by signal N
  130   you pressed Ctrl-C (once: the command may clean up; twice: it may not)
  143   this client got SIGTERM
"""


def run_words(argv: Sequence[str]) -> int:
    """Do what the words after ``run`` say; returns the exit status.

    Raises:
        HelpWanted: They ask for help.
    """
    try:
        args = parse_run(argv, os.environ)
    except BashdError as error:
        options = argv[: argv.index("--")] if "--" in argv else argv
        return report_failure(error, as_json="--json" in options)
    open_missing_streams()
    interrupts = Interrupts()
    try:
        return _run(args, interrupts)
    except BashdError as error:
        if interrupts.count:
            return interrupts.exit_status
        return report_failure(error, as_json=args.json)
    except OSError as error:
        failure = HostError(f"cannot write the output: {error.strerror}")
        return report_failure(failure, as_json=args.json)


def _run(args: RunArgs, interrupts: Interrupts) -> int:
    host = chosen_host(args.host, args.socket)
    params = _params(args, far=host is not None)
    link = Link.reach(
        args.socket, host=host or "", autostart=args.autostart, client="bashd run"
    )
    if interrupts.count:
        return interrupts.exit_status
    if args.background:
        return _start(args, link, params)
    if args.tty:
        return _run_with_terminal(link, params, interrupts)
    # Loaded while an ssh connects.
    from bashd.cli.foreground import Foreground  # noqa: PLC0415

    params["stream"] = not args.json
    params["stdin_stream"] = args.stdin
    request_id = link.send("exec.run", params)
    run = Foreground(link, request_id, interrupts, forward_stdin=args.stdin)
    result = run.wait()
    if args.json:
        print_json(result)
    else:
        # To a reader that had enough, as in `| head`, the rest is of no interest.
        lines = [] if run.closed_stdout else markers(result, _writable(link, result))
        run.conclude(result, lines)
    if interrupts.count and result["aborted"]:
        return interrupts.exit_status
    if run.closed_stdout and result["aborted"]:
        return _SIGPIPE_STATUS
    return exit_status(result)


def _params(args: RunArgs, *, far: bool) -> dict[str, Any]:
    ambient, removed = ambient_of({} if far else os.environ)
    params: dict[str, Any] = {
        "command": args.command,
        "ambient": ambient,
        "env_removed": removed,
        "env": args.env,
    }
    if args.session is None:
        params["cwd"] = (args.cwd or FAR_FOLDER) if far else absolute(args.cwd)
    optional = {
        "session_id": args.session,
        "mode": args.mode,
        "policy": args.policy,
        "timeout_ms": args.timeout_ms,
    }
    params.update((name, value) for name, value in optional.items() if value)
    return params


def _run_with_terminal(
    link: Link, params: dict[str, Any], interrupts: Interrupts
) -> int:
    from bashd.cli.run_tty import (  # noqa: PLC0415 - only for -t
        TerminalRun,
        check_terminal,
        terminal_params,
    )

    check_terminal()
    given = terminal_params(os.environ)
    given["env"].update(params["env"])
    result = TerminalRun(link, link.send("exec.run", params | given), interrupts).wait()
    for line in markers(result, _writable(link, result)):
        sys.stderr.write(f"{line}\n")
    return exit_status(result)


def _writable(link: Link, result: dict[str, Any]) -> list[str] | None:
    """Return where a refused command could have written; None if it is not known."""
    sandbox = result.get("sandbox")
    if not sandbox or not any(denial["path"] for denial in sandbox.get("denials", ())):
        return None
    try:
        return link.call("run.explain", {"id": result["run_id"]})["writable"]
    except BashdError:  # the result is there; this was only to help
        return None


def _start(args: RunArgs, link: Link, params: dict[str, Any]) -> int:
    # In the background no timeout applies unless one was asked for.
    if args.timeout_ms is not None:
        params["deadline_ms"] = params.pop("timeout_ms")
    if args.stdin:
        params["stdin_b64"] = _whole_stdin()
    task = link.call("exec.start", params)
    if args.json:
        print_json(task)
    else:
        print_text(f"{task['task_id']}\n")
    return 0


def _whole_stdin() -> str:
    data = sys.stdin.buffer.read(MAX_BACKGROUND_STDIN_BYTES + 1)
    if len(data) > MAX_BACKGROUND_STDIN_BYTES:
        raise LimitError(
            "a background task takes at most 8 MiB of stdin; have the command read a "
            "file instead"
        )
    return b2a_base64(data, newline=False).decode()


def add_parser(subparsers: Subparsers) -> None:
    """Add ``run`` to the help and to shell completion; `parse_run` does the parsing."""
    from argparse import REMAINDER  # noqa: PLC0415 - no argparse to run something

    from bashd.cli.parsing import add_command  # noqa: PLC0415

    parser = add_command(
        subparsers,
        "run",
        summary="run a command, confined",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.usage = "bashd run [options] [--] COMMAND [ARG ...]"
    for option in OPTIONS:
        if option.metavar is None:
            parser.add_argument(option.flag, action="store_true", help=option.help_text)
        else:
            parser.add_argument(
                option.flag,
                metavar=option.metavar,
                help=option.help_text,
                action="append" if option.repeats else "store",
                choices=MODES if option.flag == "--mode" else None,
            )
    parser.add_argument("words", metavar="COMMAND [ARG ...]", nargs=REMAINDER)
