"""The life of one foreground command as its client sees it: output, stdin, signals.

One poll loop over four descriptors: the daemon's socket, our stdin when it is forwarded
and the daemon has taken what came before, our stdout to learn that its reader has gone,
and the wake-up pipe of signals. Stdin goes out one piece at a time and the next is read
only after the daemon has answered, so that a command that does not read costs no memory
anywhere.
"""

from __future__ import annotations

import os
import select
from binascii import a2b_base64, b2a_base64

from bashd.cli.terminal import OutputClosedError, Sink
from bashd.client.link import result_of

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from typing import Any, Final

    from bashd.cli.interrupts import Interrupts
    from bashd.client.link import Link

_STDIN: Final = 0
_PIECE_BYTES: Final = 64 * 1024
"""Bytes of stdin in one message: the capacity of a pipe."""


class Foreground:
    """Sees one ``exec.run`` through.

    Args:
        link: Where it was sent.
        request_id: The id under which it was sent.
        interrupts: Signals; the first aborts the command, the second forces its end.
        forward_stdin: Whether the command reads our stdin.
    """

    def __init__(
        self,
        link: Link,
        request_id: int,
        interrupts: Interrupts,
        *,
        forward_stdin: bool,
    ) -> None:
        self._link = link
        self._request_id = request_id
        self._interrupts = interrupts
        self._passed_on = 0
        self.cancelled = False
        """Whether we have asked for its end."""
        self.closed_stdout = False
        self._piece_id: int | None = None
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._poll.register(interrupts.wake_fd, select.POLLIN)
        self.sinks = {
            name: Sink(fd, self._nobody_waits, interrupts.wake_fd)
            for name, fd in (("stdout", 1), ("stderr", 2))
        }
        self._one_screen = all(sink.is_terminal for sink in self.sinks.values())
        self.printed = {"stdout": 0, "stderr": 0}
        """Bytes of each stream that were written, all from its start on."""
        self._gapped: set[str] = set()
        if self.sinks["stdout"].can_close:
            # No events asked for: poll reports a reader that has gone in any case.
            self._poll.register(1, 0)
        if forward_stdin:
            self._poll.register(_STDIN, select.POLLIN)

    def _nobody_waits(self) -> bool:
        return self._interrupts.count == 0

    def wait(self) -> dict[str, Any]:
        """Return the result, once the command has settled.

        Raises:
            BashdError: The daemon's error, as the class it raised.
            OSError: Our stdout takes no more; the command was asked to end.
        """
        while True:
            while (message := self._link.receive_nowait()) is not None:
                if message.get("id") == self._request_id:
                    return result_of(message)
                self._handle(message)
            self._pass_on_signals()
            self._wait_for_something()

    def _wait_for_something(self) -> None:
        for fd, _ in self._poll.poll():
            if fd == self._link.fileno():
                self._link.read()
            elif fd == self._interrupts.wake_fd:
                self._interrupts.drain()
            elif fd == _STDIN:
                self._forward_stdin()
            else:
                self._stdout_closed()

    def _pass_on_signals(self) -> None:
        while self._passed_on < self._interrupts.count:
            self._passed_on += 1
            self.cancel(force=self._passed_on > 1)

    def cancel(self, *, force: bool = False) -> None:
        """Ask the daemon to end the command; its result comes all the same."""
        self.cancelled = True
        params = {"request_id": self._request_id, "force": force}
        self._link.send("exec.cancel", params)

    def _handle(self, message: dict[str, Any]) -> None:
        if message.get("method") == "exec.output":
            self._print(message["params"])
        elif message.get("id") == self._piece_id:
            self._piece_id = None
            if "error" not in message:
                self._poll.register(_STDIN, select.POLLIN)

    def _print(self, params: dict[str, Any]) -> None:
        name = params["stream"]
        data = a2b_base64(params["data_b64"])
        if params.get("offset", 0) > self.printed[name]:
            # We read too slowly and something was dropped: the rest is for `catch_up`.
            self._gapped.add(name)
        if name not in self._gapped:
            self.print(name, data)

    def print(self, name: str, data: bytes) -> None:
        """Write the next bytes of a stream where they belong.

        Raises:
            OSError: It takes no more; the command was asked to end.
        """
        self.printed[name] += len(data)
        if name == "stdout" and self.closed_stdout:
            return
        sink = self.sinks[name]
        try:
            sink.write(data)
        except OutputClosedError:
            if name == "stdout":
                self._stdout_closed()
        except OSError:
            self.cancel()
            raise
        if self._one_screen:
            for each in self.sinks.values():
                each.at_line_start = sink.at_line_start

    def _stdout_closed(self) -> None:
        if self.closed_stdout:
            return
        self.closed_stdout = True
        if self.sinks["stdout"].can_close:
            self._poll.unregister(1)
        self.cancel()

    def _forward_stdin(self) -> None:
        try:
            data = os.read(_STDIN, _PIECE_BYTES)
        except OSError:
            # A folder, or a terminal that is gone: there is nothing more to read.
            data = b""
        piece = {
            "request_id": self._request_id,
            "data_b64": b2a_base64(data, newline=False).decode(),
            "eof": not data,
        }
        self._poll.unregister(_STDIN)
        piece_id = self._link.send("exec.stdin", piece)
        if data:
            self._piece_id = piece_id

    def conclude(self, result: dict[str, Any], markers: list[str]) -> None:
        """Print what is missing of the output, then *markers* on stderr."""
        notices = [
            notice for name in self.printed for notice in self._rest(name, result)
        ]
        try:
            for sink in self.sinks.values():
                sink.finish()
            for line in [*notices, *markers]:
                self.sinks["stderr"].write_line(line)
        except OutputClosedError:
            return

    def _rest(self, name: str, result: dict[str, Any]) -> list[str]:
        """Print what did not come live; return a notice of what cannot be had.

        The complete stream is in its spill file, when there is one; a stream that was
        kept whole is in the result itself.
        """
        kept = result[name]
        gone = name == "stdout" and self.closed_stdout
        if self.printed[name] >= kept["bytes"] or gone:
            return []
        if not kept["truncated"] and self.printed[name] == 0:
            self.print(name, kept["text"].encode())
            return []
        path = kept["spill_path"]
        if self._link.far is not None:
            # The same path here is another file.
            path = path and f"{path} on {self._link.far.host}"
        elif path is not None and self._print_file(name, path):
            return []
        return [f"[output truncated; full output: {path or '(unavailable)'}]"]

    def _print_file(self, name: str, path: str) -> bool:
        try:
            file = open(path, "rb")  # noqa: PTH123, SIM115 - closed below
        except OSError:
            return False
        with file:
            file.seek(self.printed[name])
            while data := file.read(_PIECE_BYTES):
                self.print(name, data)
        return True
