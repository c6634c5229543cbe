"""``bashd dial-stdio``: the far end of a connection that came by ssh.

Joins stdin and stdout to the daemon's socket on this machine. Bytes pass as they are,
but for what the near end cannot know: where a request brings no environment of its own
(``ambient`` is empty) or a relative folder, it gets those of this process.

One thread for each direction, so that a slow reader of one holds up only that one.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading

from bashd.client.ambient import ambient_of
from bashd.client.folder import absolute
from bashd.client.reach import reach_daemon
from bashd.core.errors import BashdError
from bashd.protocol.wire import MAX_FRAME_BYTES, is_object

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, Final

    from bashd.cli.parsing import Subparsers

_DESCRIPTION = """\
Join stdin and stdout to the socket of the daemon on this machine.

You do not call this: `bashd run --host ssh://this-machine` does, through ssh.
"""

_EPILOG = """\
examples:
  ssh build.example bashd dial-stdio      what --host ssh://build.example runs

exit status:
  0 one side has closed the connection, 125 no daemon can be reached
"""

_STDIN: Final = 0
_STDOUT: Final = 1
_CHUNK_BYTES: Final = 256 * 1024
"""Read at once: a burst of live output in one call, as the client does."""

_PERHAPS_UNFILLED: Final = re.compile(rb'"ambient"\s*:\s*\{\s*\}|"session\.open"')
"""In a line that may lack something. A quote inside a JSON string is escaped, so no
command text looks like the first."""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``dial-stdio``."""
    # No argparse on the way of a call; see `run_words`.
    from bashd.cli.parsing import add_client_options, add_command  # noqa: PLC0415

    parser = add_command(
        subparsers,
        "dial-stdio",
        summary="the far end of --host",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add_client_options(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    return _join(args.socket, autostart=args.autostart)


def run_words(words: Sequence[str]) -> int | None:
    """Do what the near end asks for; returns the exit status, None for other words.

    It knows two options, and half of a call's time would be argparse's.
    """
    named: str | None = None
    rest = list(words)
    if rest[:1] == ["--socket"] and len(rest) > 1:
        named, rest = rest[1], rest[2:]
    if rest not in ([], ["--no-autostart"]):
        return None
    try:
        return _join(named, autostart=not rest)
    except BashdError as error:
        # Rarely needed, and a call waits for what is loaded here.
        from bashd.cli.report import report_failure  # noqa: PLC0415

        return report_failure(error, as_json=False)


def _join(named: str | None, *, autostart: bool) -> int:
    connection = reach_daemon(named, autostart=autostart)
    to_daemon = threading.Thread(
        target=_pass_requests, args=(connection, os.environ, absolute()), daemon=True
    )
    to_daemon.start()
    _pass_answers(connection)
    return 0


def _pass_requests(
    connection: socket.socket, environ: Mapping[str, str], folder: str
) -> None:
    try:
        for line in _lines():
            connection.sendall(filled_in(line, environ, folder))
        # The daemon ends what ran in the foreground, and closes its side.
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        # The daemon has gone; the other thread sees it and ends the process.
        return


def _lines() -> Iterator[bytes]:
    """Yield what comes on stdin, line by line; a line without end in pieces."""
    held: list[bytes] = []
    size = 0
    while data := os.read(_STDIN, _CHUNK_BYTES):
        held.append(data)
        size += len(data)
        if b"\n" in data:
            *lines, rest = b"".join(held).split(b"\n")
            yield from (line + b"\n" for line in lines)
            held, size = [rest], len(rest)
        elif size > MAX_FRAME_BYTES:
            # The daemon will refuse it; it is not ours to hold it until then.
            yield b"".join(held)
            held, size = [], 0
    if size:
        yield b"".join(held)


def filled_in(line: bytes, environ: Mapping[str, str], folder: str) -> bytes:
    """Return *line* with environment and folder where it leaves them to this side.

    Args:
        line: One message; anything else is returned as it is.
        environ: This side's environment; credentials in it are left out.
        folder: Where relative paths start, absolute.
    """
    if not _PERHAPS_UNFILLED.search(line):
        return line
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not is_object(message):
        return line
    params = message.get("params")
    inner = params.get("call", params) if is_object(params) else params
    if not is_object(inner):
        return line
    if _leaves_to_us(message.get("method"), inner):
        inner["ambient"], inner["env_removed"] = ambient_of(environ)
        cwd = inner.get("cwd")
        if isinstance(cwd, str) and not cwd.startswith("/"):
            inner["cwd"] = folder if cwd == "." else f"{folder}/{cwd}"
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _leaves_to_us(method: object, params: dict[str, Any]) -> bool:
    # A new session has an environment; for all else, none given is the session's.
    given = params.get("ambient")
    return given == {} or (given is None and method == "session.open")


def _pass_answers(connection: socket.socket) -> None:
    while True:
        try:
            data = connection.recv(_CHUNK_BYTES)
        except ConnectionResetError:
            return
        if not data:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(_STDOUT, rest) :]
        except OSError:
            # Nobody listens any more; our end closes the daemon's connection.
            return
