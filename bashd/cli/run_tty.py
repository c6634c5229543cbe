"""``bashd run -t``: a command with a terminal of its own, and ours passed through to it.

Ours is in raw mode meanwhile: every key goes to the command's terminal, and what Ctrl-C
means there is that terminal's business. What the command prints reaches our terminal
unchanged; whoever wants control characters made visible leaves out -t.
"""

from __future__ import annotations

import os
import select
import signal
import termios
import tty
from binascii import a2b_base64, b2a_base64

from bashd.client.link import result_of
from bashd.core.errors import InvalidParamsError

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final

    from bashd.cli.interrupts import Interrupts
    from bashd.client.link import Link

_STDIN: Final = 0
_STDOUT: Final = 1
_PIECE_BYTES: Final = 16 * 1024
_FOR_PEOPLE: Final = (
    *("NO_COLOR", "PAGER", "GIT_PAGER", "GIT_EDITOR", "GIT_TERMINAL_PROMPT"),
    *("TERM", "COLORTERM", "LINES", "COLUMNS"),
)
"""What bashd sets for commands nobody watches, and what describes a terminal."""


def check_terminal() -> None:
    """Look whether there is a terminal to pass through.

    Raises:
        InvalidParamsError: There is none.
    """
    for fd, name in ((_STDIN, "input"), (_STDOUT, "output")):
        if not os.isatty(fd):
            raise InvalidParamsError(
                f"-t needs a terminal, and the {name} is none; leave -t out"
            )


def terminal_params(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what an ``exec.run`` with a terminal says beside its command.

    The caller's own choice of pager, colours and terminal type counts, where commands
    nobody watches get bashd's.
    """
    size = os.get_terminal_size(_STDOUT)
    env = {name: environ.get(name) for name in _FOR_PEOPLE}
    env["LINES"] = env["COLUMNS"] = None
    return {
        "terminal": {"rows": size.lines or 24, "columns": size.columns or 80},
        "env": env,
        "stream": True,
        "stdin_stream": True,
    }


class TerminalRun:
    """Sees one ``exec.run`` with a terminal through.

    Args:
        link: Where it was sent.
        request_id: The id under which it was sent.
        interrupts: SIGTERM aborts the command, a second one forces its end.
    """

    def __init__(self, link: Link, request_id: int, interrupts: Interrupts) -> None:
        self._link = link
        self._request_id = request_id
        self._interrupts = interrupts
        self._passed_on = 0
        self._resized = False
        self._piece_id: int | None = None
        self._poll = select.poll()
        for fd in (link.fileno(), interrupts.wake_fd, _STDIN):
            self._poll.register(fd, select.POLLIN)

    def wait(self) -> dict[str, Any]:
        """Return the result, once the command has settled; our terminal is as it was.

        Raises:
            BashdError: The daemon's error, as the class it raised.
        """
        before = termios.tcgetattr(_STDIN)
        resized = signal.signal(signal.SIGWINCH, self._note_resize)
        try:
            # Not the default, which throws away what was typed already.
            tty.setraw(_STDIN, termios.TCSADRAIN)
            # It may have been resized since its size was sent.
            self._resized = True
            return self._serve()
        finally:
            signal.signal(signal.SIGWINCH, resized)
            termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)

    def _note_resize(self, _number: int, _frame: object) -> None:
        # The wake-up descriptor of `Interrupts` ends the poll.
        self._resized = True

    def _serve(self) -> dict[str, Any]:
        while True:
            while (message := self._link.receive_nowait()) is not None:
                if message.get("id") == self._request_id:
                    return result_of(message)
                self._handle(message)
            self._pass_on_signals()
            for fd, _ in self._poll.poll():
                if fd == self._link.fileno():
                    self._link.read()
                elif fd == self._interrupts.wake_fd:
                    self._interrupts.drain()
                else:
                    self._forward_keys()

    def _pass_on_signals(self) -> None:
        while self._passed_on < self._interrupts.count:
            self._passed_on += 1
            force = self._passed_on > 1
            params = {"request_id": self._request_id, "force": force}
            self._link.send("exec.cancel", params)
        if self._resized:
            self._resized = False
            size = os.get_terminal_size(_STDOUT)
            if size.lines and size.columns:
                params = {
                    "request_id": self._request_id,
                    "rows": size.lines,
                    "columns": size.columns,
                }
                self._link.send("exec.resize", params)

    def _handle(self, message: dict[str, Any]) -> None:
        if message.get("method") == "exec.output":
            _write(a2b_base64(message["params"]["data_b64"]))
        elif message.get("id") == self._piece_id:
            self._piece_id = None
            if "error" not in message:
                self._poll.register(_STDIN, select.POLLIN)

    def _forward_keys(self) -> None:
        try:
            data = os.read(_STDIN, _PIECE_BYTES)
        except OSError:
            data = b""  # the terminal is gone
        piece = {
            "request_id": self._request_id,
            "data_b64": b2a_base64(data, newline=False).decode(),
            "eof": not data,
        }
        # The next keys are read when the daemon has taken these.
        self._poll.unregister(_STDIN)
        piece_id = self._link.send("exec.stdin", piece)
        if data:
            self._piece_id = piece_id


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(_STDOUT, view) :]
        except BlockingIOError:
            select.select([], [_STDOUT], [])
