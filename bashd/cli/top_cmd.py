"""``bashd top``: what the daemon does, live."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bashd.cli.parsing import add_client_options, add_command, open_link
from bashd.cli.ps_cmd import status_words
from bashd.cli.report import print_json, print_text
from bashd.cli.table import amount, duration, table_for_stdout
from bashd.cli.terminal import visible_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator, Iterator

    from bashd.cli.parsing import Subparsers
    from bashd.client.link import Link

_DESCRIPTION = """\
Show what the daemon does, once a second, until you press q or Ctrl-C: commands a second,
how long they take, cells, tasks, denials, output; and your own running tasks.

The figures are of all users together, so only the daemon's owner sees them (root, for
the machine's). Others see what is theirs.
"""

_EPILOG = """\
examples:
  bashd top
  sudo bashd top --interval 5
  bashd top --json | jq .figures

exit status:
  0 done, 2 the words make no sense, 125 bashd failed (the message says how)
"""

_SUFFIX: Final = ".metrics"
_READ_S: Final = 5
_CLEAR: Final = "\x1b[H\x1b[2J"
_ALTERNATE, _BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HEADER: Final = ("TASK", "STATUS", "AGE", "CPU", "MEMORY", "OUTPUT", "COMMAND")


@dataclass(slots=True)
class Figures:
    """One reading of the daemon's metrics."""

    taken_at: float
    values: dict[str, float] = field(default_factory=dict[str, float])
    """By series, as ``name{labels}``."""

    def total(self, name: str, having: str = "") -> float:
        """Return the sum over all series of a name, or those whose labels have a text."""
        return sum(
            value
            for series, value in self.values.items()
            if series.partition("{")[0] == name and having in series
        )


def add_parser(subparsers: Subparsers) -> None:
    """Add ``top``."""
    parser = add_command(
        subparsers,
        "top",
        summary="show what the daemon does, live",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--interval", metavar="SECONDS", type=float, default=1.0, help="between looks"
    )
    once = parser.add_mutually_exclusive_group()
    once.add_argument("--once", action="store_true", help="print one look and end")
    once.add_argument("--json", action="store_true", help="print one JSON object")
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    link = open_link(args)
    now = read_figures(link)
    if args.json:
        print_json(_as_object(link, now))
        return 0
    if args.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        print_text(_screen(link, None, now))
        return 0
    with _own_screen():
        before: Figures | None = None
        while True:
            print_text(_CLEAR + _screen(link, before, now))
            if _wait_for_q(max(0.1, args.interval)):
                return 0
            before, now = now, read_figures(link)


def read_figures(link: Link) -> Figures | None:
    """Read the daemon's metrics; None where this user may not."""
    path = f"{link.connection.getpeername()}{_SUFFIX}"
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_READ_S)
            sock.connect(path)
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: bashd\r\n\r\n")
            with sock.makefile("rb") as answer:
                _, _, body = answer.read().partition(b"\r\n\r\n")
    except OSError:
        return None
    found = Figures(time.monotonic())
    for line in body.decode().splitlines():
        series, _, value = line.rpartition(" ")
        if series and not line.startswith("#"):
            found.values[series] = float(value)
    return found


def _screen(link: Link, before: Figures | None, now: Figures | None) -> str:
    tasks: list[dict[str, Any]] = link.call("task.list", {"all": False})["tasks"]
    if now is None:
        status: dict[str, Any] = link.call("daemon.status", {})
        head = (
            f"bashd, up {duration(status['uptime_s'])}; only your own is shown, the"
            " figures of all are the daemon's owner's\n"
            f"sessions {status['sessions']}   cells {status['cells']}   tasks"
            f" {status['tasks']}\n"
        )
    else:
        head = "\n".join(_facts(before, now)) + "\n"
    rows = [_row(task) for task in tasks]
    return f"{head}\n{table_for_stdout(_HEADER, rows)}"


def _facts(before: Figures | None, now: Figures) -> Iterator[str]:
    def rate(name: str) -> float:
        # The first look has nothing to compare with: the mean since the start.
        if before is None:
            return now.total(name) / max(1.0, now.total("bashd_uptime_seconds"))
        passed = max(0.001, now.taken_at - before.taken_at)
        return max(0.0, now.total(name) - before.total(name)) / passed

    def count(name: str, having: str = "") -> int:
        return int(now.total(name, having))

    commands = "bashd_commands_total"
    yield f"bashd, up {duration(now.total('bashd_uptime_seconds'))}"
    yield (
        f"commands {count(commands)} ({rate(commands):.1f}/s)"
        f"   failed {count(commands, 'failed')}"
        f"   denied {count('bashd_denials_total')}"
        f"   refused {count('bashd_refused_calls_total')}"
    )
    runs = max(1.0, now.total("bashd_run_seconds_count"))
    yield (
        f"a run takes {now.total('bashd_run_seconds_sum') / runs * 1000:.1f} ms on"
        f" average   output {amount(count('bashd_output_bytes_total'))}"
        f" ({amount(int(rate('bashd_output_bytes_total')))}/s)"
        f"   kept {amount(count('bashd_output_kept_bytes'))}"
    )
    yield (
        f"sessions {count('bashd_sessions')}   cells {count('bashd_cells')}"
        f"   tasks {count('bashd_tasks_running')}"
        f"   calls {count('bashd_calls_in_flight')}"
        f"   questions {count('bashd_approvals_pending')}"
    )


def _as_object(link: Link, now: Figures | None) -> dict[str, Any]:
    names = {series.partition("{")[0] for series in now.values} if now else set[str]()
    figures = {name: now.total(name) for name in sorted(names)} if now else None
    return {"status": link.call("daemon.status", {}), "figures": figures}


def _row(task: dict[str, Any]) -> tuple[str, ...]:
    return (
        task["task_id"],
        status_words(task),
        duration(task["age_s"]),
        duration(task.get("cpu_ms", 0) / 1000),
        amount(task.get("rss_bytes", 0)),
        amount(task.get("stdout_bytes", 0) + task.get("stderr_bytes", 0)),
        visible_line(task["command"]),
    )


@contextlib.contextmanager
def _own_screen() -> Generator[None, None, None]:
    """Use the terminal's second screen, with keys read as they are pressed."""
    import termios  # noqa: PLC0415 - only on a terminal
    import tty  # noqa: PLC0415

    fd = sys.stdin.fileno()
    saved = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        print_text(_ALTERNATE)
        yield
    finally:
        print_text(_BACK)
        termios.tcsetattr(fd, termios.TCSADRAIN, saved)


def _wait_for_q(seconds: float) -> bool:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            key = sys.stdin.read(1)
            if key in ("q", "Q", ""):
                return True
    return False
