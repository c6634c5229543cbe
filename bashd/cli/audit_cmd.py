"""``bashd audit``: read the audit log, and see whether somebody has changed it.

Reads the files, not the daemon: a log must be readable when no daemon is, and by
whoever has a copy of it.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bashd.cli.parsing import add_command, add_json_option
from bashd.cli.report import print_json, print_text
from bashd.cli.table import duration, table_for_stdout
from bashd.cli.terminal import open_missing_streams
from bashd.core.audit_chain import Head, open_line, verify
from bashd.core.errors import ConfigError, HostError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from bashd.cli.parsing import Subparsers

_DESCRIPTION = """\
The audit log: who ran what, in which session and mode, what it was refused, how it ended
and what it cost. One JSON object a line, each with the hash of the line before.
"""

_EPILOG = """\
examples:
  bashd audit show                     the latest 20 entries
  bashd audit show -n 0 --json | jq 'select(.verdict == "denied")'
  bashd audit verify                   is every line there, and as it was written?
  bashd audit verify --file /mnt/backup/audit.jsonl

exit status:
  0 done; for verify: nothing was removed, altered or moved
  1 verify found a problem
  2 the words make no sense, 125 the log cannot be read (the message says how)
"""

_TAMPERED: Final = 1
_ROTATED: Final = re.compile(r"\.(\d{1,4})\Z")


def add_parser(subparsers: Subparsers) -> None:
    """Add ``audit`` and its verbs."""
    parser = add_command(
        subparsers,
        "audit",
        summary="read and verify the log of who ran what",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    show = verbs.add_parser("show", help="print the latest entries", allow_abbrev=False)
    show.add_argument(
        "-n",
        dest="count",
        metavar="COUNT",
        type=_count,
        default=20,
        help="so many entries; 0 for all (default: 20)",
    )
    check = verbs.add_parser(
        "verify", help="find removed, altered and moved lines", allow_abbrev=False
    )
    for verb in (show, check):
        verb.add_argument(
            "--file", metavar="PATH", help="read this log and what was rotated from it"
        )
        verb.add_argument(
            "--config", metavar="FILE", help="find the log by this bashd.toml"
        )
        add_json_option(verb)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status.

    Raises:
        HostError: The log cannot be read.
        ConfigError: bashd.toml is wrong.
    """
    open_missing_streams()
    path = Path(args.file) if args.file else _configured_path(args.config)
    files = _files(path)
    try:
        return (
            _verify(path, files, args) if args.verb == "verify" else _show(files, args)
        )
    except OSError as error:
        msg = f"{error.filename or path}: cannot be read ({error.strerror})"
        raise HostError(msg) from None


def _configured_path(explicit: str | None) -> Path:
    """Return where a daemon of this account writes its log."""
    from bashd.core.config import Config, parse_config  # noqa: PLC0415 - rarely needed
    from bashd.core.places import state_folder  # noqa: PLC0415

    root = os.geteuid() == 0
    home = os.environ.get("HOME") or str(Path.home())
    folder = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    default = "/etc/bashd/bashd.toml" if root else f"{folder}/bashd/bashd.toml"
    file = Path(explicit or default)
    config = Config()
    try:
        config = parse_config(file.read_text(), str(file))
    except FileNotFoundError:
        if explicit is not None:
            msg = f"{file}: no such file; check --config"
            raise ConfigError(msg) from None
    except OSError as error:
        msg = f"{file}: cannot be read ({error.strerror}); fix its permissions"
        raise ConfigError(msg) from None
    if config.audit.path is not None:
        return Path(config.audit.path)
    state = config.daemon.state_dir
    uid = os.geteuid()
    return Path(state or state_folder(os.environ, uid=uid, home=home)) / "audit.jsonl"


def _files(path: Path) -> list[Path]:
    """Return the files of a log, oldest first."""
    aside: list[tuple[int, Path]] = []
    try:
        for other in path.parent.iterdir():
            number = _ROTATED.search(other.name)
            if number and other.name == f"{path.name}{number[0]}":
                aside.append((int(number[1]), other))
    except OSError as error:
        msg = f"{path.parent}: cannot be read ({error.strerror}); root may read root's"
        raise HostError(msg) from None
    files = [other for _, other in sorted(aside, reverse=True)]
    if path.exists():
        files.append(path)
    if not files:
        msg = (
            f"{path}: no such file; name the log with --file, or the daemon's"
            " configuration with --config ([audit] path)"
        )
        raise HostError(msg)
    return files


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        for line in stream:
            yield line.rstrip(b"\n")


def _verify(path: Path, files: list[Path], args: argparse.Namespace) -> int:
    head = _head(path)
    verdict = verify(((file.name, _lines(file)) for file in files), head)
    last = verdict.last
    if args.json:
        print_json(
            {
                "ok": not verdict.problems,
                "files": [str(file) for file in files],
                "lines": verdict.lines,
                "first": verdict.first,
                "last": None if last is None else last.number,
                "hash": None if last is None else last.digest,
                "problems": [
                    {"file": p.file, "line": p.line, "what": p.what}
                    for p in verdict.problems
                ],
            }
        )
        return _TAMPERED if verdict.problems else 0
    for problem in verdict.problems:
        where = f"{problem.file}:{problem.line}" if problem.line else problem.file
        print_text(f"{where}: {problem.what}\n")
    if verdict.problems:
        return _TAMPERED
    print_text(
        f"{verdict.lines} lines in {len(files)} file{'s' * (len(files) > 1)},"
        f" numbers {verdict.first} to {last.number if last else 0}: all there, as"
        f" written\nhash of the last: {last.digest if last else '-'}\n"
    )
    return 0


def _head(path: Path) -> Head | None:
    try:
        return Head.parse(path.with_name(f"{path.name}.head").read_text())
    except (FileNotFoundError, ValueError):
        return None


def _show(files: list[Path], args: argparse.Namespace) -> int:
    latest: deque[dict[str, Any]] = deque(maxlen=args.count or None)
    for file in files:
        for line in _lines(file):
            opened = open_line(line)
            entry = {"event": "altered", "line": line.decode(errors="replace")}
            latest.append(entry if opened is None else opened.entry)
    if args.json:
        for entry in latest:
            print_json(entry)
        return 0
    header = ("SEQ", "WHEN", "USER", "EVENT", "MODE", "OUTCOME", "WHAT")
    print_text(table_for_stdout(header, [_row(entry) for entry in latest]))
    return 0


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    when = entry.get("time")
    shown = "-"
    if isinstance(when, int | float):
        shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    return (
        str(entry.get("seq", "-")),
        shown,
        str(entry.get("user", "-")),
        str(entry.get("event", "-")),
        str(entry.get("mode") or "-"),
        _outcome(entry),
        _subject(entry),
    )


def _outcome(entry: dict[str, Any]) -> str:
    if entry.get("event") != "run":
        return str(entry.get("outcome") or entry.get("code") or "-")
    end = entry.get("signal") or f"exit {entry.get('exit_code')}"
    took = duration(int(entry.get("wall_ms") or 0) / 1000)
    verdict = entry.get("verdict")
    denied = f", {verdict}" if verdict not in (None, "none") else ""
    return f"{end} in {took}{denied}"


def _subject(entry: dict[str, Any]) -> str:
    for key in ("command", "command_sha256", "reason", "method", "task_id", "session"):
        if entry.get(key):
            return str(entry[key])
    return "-"
