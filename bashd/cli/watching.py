"""``bashd approvals --watch``: questions as they come, and on a terminal their answers.

One loop over the daemon's socket, the terminal and a pipe that signals write to. What
is shown, and whether anything is read, is a screen's: `_Dialog` on a terminal, `_Lines`
everywhere else. Being in the loop is what makes us somebody who can be asked, so it is
left as soon as nobody reads any more.
"""

from __future__ import annotations

import os
import select
import sys
import termios
from typing import TYPE_CHECKING, Any, Final, Protocol

from bashd.cli.interrupts import Interrupts
from bashd.cli.question import ALLOWED_ONCE, REJECTED, question_block
from bashd.cli.report import print_json, print_text
from bashd.core.errors import UnknownApprovalError

if TYPE_CHECKING:
    from bashd.client.link import Link

_STDIN: Final = 0
_STDOUT: Final = 1
_LINE_BYTES: Final = 4096
"""Most of one line of a terminal. Source: termios(3), canonical mode."""
_COMING: Final = "Questions appear here as they come"
_PROMPT: Final = "Run it, once? [y/n] "
_WORDS: Final = {"y": ALLOWED_ONCE, "yes": ALLOWED_ONCE, "n": REJECTED, "no": REJECTED}


class _Screen(Protocol):
    """Where questions are shown."""

    reads: bool
    """Whether stdin is its to read."""

    def begin(self) -> None:
        """Say that from now on there is somebody who can be asked."""
        ...

    def asked(self, info: dict[str, Any]) -> None:
        """Take in a question."""
        ...

    def settled(self, approval_id: str, outcome: str) -> None:
        """Take in that a question has its answer."""
        ...

    def before_waiting(self) -> None:
        """Show what there is to show; nothing may come for a long time."""
        ...

    def typed(self, line: str) -> None:
        """Take in what was typed."""
        ...


def watch(link: Link, *, as_json: bool) -> int:
    """Watch until interrupted, or until nobody reads; returns the exit status."""
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _Watch(link, _Lines(as_json=as_json)).run()
    return _Watch(link, _Dialog(link)).run()


class _Watch:
    """The loop; see the module docstring."""

    def __init__(self, link: Link, screen: _Screen) -> None:
        self._link = link
        self._screen = screen
        self._interrupts = Interrupts()
        self._poll = select.poll()
        self._poll.register(self._interrupts.wake_fd, select.POLLIN)
        self._poll.register(link.fileno(), select.POLLIN)
        # For no event but the errors that always count: the reader has gone.
        self._poll.register(_STDOUT, 0)
        if screen.reads:
            self._poll.register(_STDIN, select.POLLIN)

    def run(self) -> int:
        self._link.on_notification = self._heed
        waiting = self._link.call("approval.watch", {})["approvals"]
        self._screen.begin()
        for info in waiting:
            self._screen.asked(info)
        while True:
            self._drain()
            self._screen.before_waiting()
            ready = {fd for fd, _ in self._poll.poll()}
            if self._interrupts.count:
                return self._interrupts.exit_status
            if _STDOUT in ready or (_STDIN in ready and not self._read_line()):
                return 0
            if self._link.fileno() in ready:
                self._link.read()

    def _drain(self) -> None:
        while (message := self._link.receive_nowait()) is not None:
            if "method" in message:
                self._heed(message["method"], message.get("params") or {})

    def _heed(self, method: str, params: dict[str, Any]) -> None:
        if method == "approval.asked":
            self._screen.asked(params["approval"])
        elif method == "approval.settled":
            self._screen.settled(params["approval_id"], params["outcome"])

    def _read_line(self) -> bool:
        line = os.read(_STDIN, _LINE_BYTES)
        self._screen.typed(line.decode(errors="replace"))
        return bool(line)


class _Lines:
    """Shows, and takes no answer: a program's output, or a person's log."""

    reads = False

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def begin(self) -> None:
        if self._as_json:
            print_json({"watching": True})
        else:
            print_text(f"{_COMING}; answer with `bashd approve` or `bashd reject`.\n\n")

    def asked(self, info: dict[str, Any]) -> None:
        if self._as_json:
            print_json({"asked": info})
        else:
            print_text(f"{question_block(info)}\n\n")

    def settled(self, approval_id: str, outcome: str) -> None:
        if self._as_json:
            print_json({"settled": {"approval_id": approval_id, "outcome": outcome}})
        else:
            print_text(f"[{approval_id}] {outcome}\n\n")

    def before_waiting(self) -> None:
        return

    def typed(self, line: str) -> None:
        return


class _Dialog:
    """Asks a person at a terminal, one question at a time, the oldest first."""

    reads = True

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: dict[str, dict[str, Any]] = {}
        self._shown: str | None = None

    def begin(self) -> None:
        print_text(f"{_COMING}; Ctrl-C ends.\n")

    def asked(self, info: dict[str, Any]) -> None:
        self._waiting[info["approval_id"]] = info

    def settled(self, approval_id: str, outcome: str) -> None:
        self._waiting.pop(approval_id, None)
        if approval_id == self._shown:
            self._shown = None
            print_text(f"\n[{approval_id}] no longer waits: {outcome}\n")

    def before_waiting(self) -> None:
        if self._shown is not None or not self._waiting:
            return
        self._shown, info = next(iter(self._waiting.items()))
        print_text(f"\n{question_block(info)}\n\n")
        # What was typed before this could be read cannot have been meant for it.
        termios.tcflush(_STDIN, termios.TCIFLUSH)
        print_text(_PROMPT)

    def typed(self, line: str) -> None:
        if self._shown is None:
            return
        outcome = _WORDS.get(line.strip().lower())
        if outcome is None:
            # Neither yes nor no; nothing is taken for either.
            print_text(_PROMPT)
            return
        approval_id, self._shown = self._shown, None
        self._waiting.pop(approval_id, None)
        try:
            params = {"approval_id": approval_id, "outcome": outcome}
            self._link.call("approval.decide", params)
        except UnknownApprovalError:
            outcome = "too late, it was answered or withdrawn meanwhile"
        print_text(f"[{approval_id}] {outcome}\n")
