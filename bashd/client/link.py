"""One blocking connection that speaks the wire in plain dicts.

`Link` sends ``initialize`` in the same write as the first request, so that a call costs
one round trip. It knows requests, answers and notifications, no methods: typed calls
are `bashd.client.sync`'s. Cheap to import: ``bashd run`` uses nothing above this.
"""

from __future__ import annotations

import os

from bashd.client.reach import chosen_host, reach_daemon
from bashd.core.errors import ConnectError, FrameError, InvalidParamsError, LimitError
from bashd.protocol.framing import Framer
from bashd.protocol.wire import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    error_from_object,
    is_object,
    request_line,
)

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from typing import Any, Final

    from bashd.client.remote import FarDaemon

HELLO_ID: Final = 0
"""Request id of ``initialize``; all others count up from 1."""

_CHUNK_BYTES: Final = 64 * 1024
"""Bytes asked of the socket at once. For more than 128 KiB the allocator asks the kernel
each time, which takes ten times as long as receiving an answer."""


def encode_request(request_id: int, method: str, params: Mapping[str, object]) -> bytes:
    """Encode one request as a line.

    Raises:
        InvalidParamsError: A text is not valid Unicode.
        LimitError: The request is longer than the wire takes.
    """
    try:
        line = request_line(request_id, method, params)
    except UnicodeEncodeError as error:
        raise InvalidParamsError(
            "the command, its environment or a path holds bytes that are not valid "
            f"UTF-8, near {error.object[max(error.start - 20, 0) : error.start]!r}"
        ) from None
    if len(line) - 1 > MAX_FRAME_BYTES:
        raise LimitError(
            f"the request has {len(line)} bytes and at most {MAX_FRAME_BYTES} are "
            "taken; put the command or its input into a file"
        )
    return line


def hello_line(client: str) -> bytes:
    """Encode the first message of a connection."""
    hello = {"protocol": PROTOCOL_VERSION, "client": client}
    return encode_request(HELLO_ID, "initialize", hello)


def check_hello(result: object) -> dict[str, Any]:
    """Return the daemon's answer to ``initialize``.

    Raises:
        ConnectError: It speaks another version of the protocol.
    """
    if is_object(result) and result.get("protocol") == PROTOCOL_VERSION:
        return result
    spoken = result.get("protocol") if is_object(result) else result
    raise ConnectError(
        f"the daemon speaks version {spoken!r} of the protocol and this client "
        f"{PROTOCOL_VERSION}; restart the daemon after an upgrade"
    )


def nonsense(error: FrameError, far: FarDaemon | None) -> str:
    """Return what to say of bytes that are no message."""
    if far is None:
        return f"the daemon sent nonsense: {error}"
    return (
        f"{far.host} sent something that no daemon sends: {error}; the start-up files"
        " of the shell there must print nothing for commands that come by ssh"
    )


class Link:
    """A connection to a daemon. Not for several threads at once.

    Args:
        connection: A connected socket; the link owns it from now on.
        client: Name that the daemon's log shows.
        far: What leads to another machine, when *connection* does.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        client: str = "python",
        far: FarDaemon | None = None,
    ) -> None:
        self.connection = connection
        self.far = far
        self.hello: dict[str, Any] | None = None
        """The answer to ``initialize``, once it has come."""
        self.on_notification: Callable[[str, dict[str, Any]], None] | None = None
        """Called with method and params of what comes while an answer is awaited."""
        self._client = client
        self._framer = Framer()
        self._last_id = HELLO_ID

    @classmethod
    def reach(
        cls,
        named: str | None = None,
        *,
        host: str | None = None,
        autostart: bool = True,
        environ: Mapping[str, str] = os.environ,
        client: str = "python",
    ) -> Link:
        """Open a link, to the daemon on *host* if one is named or in ``$BASHD_HOST``.

        See `bashd.client.reach.reach_daemon` and `bashd.client.remote.dial_host`.
        """
        host = chosen_host(host, named, environ)
        if host is not None:
            from bashd.client.remote import dial_host  # noqa: PLC0415 - rarely needed

            far = dial_host(host, named=named, autostart=autostart)
            return cls(far.connection, client=client, far=far)
        connection = reach_daemon(named, autostart=autostart, environ=environ)
        return cls(connection, client=client)

    def close(self) -> None:
        """Close the connection; the daemon ends what runs in the foreground on it."""
        if self.far is not None:
            self.far.close()
        self.connection.close()

    def fileno(self) -> int:
        """Return the descriptor, for poll."""
        return self.connection.fileno()

    def send(self, method: str, params: Mapping[str, object]) -> int:
        """Send a request and return its id without waiting for the answer.

        Raises:
            InvalidParamsError: A text is not valid Unicode.
            LimitError: The request is longer than the wire takes.
        """
        self._last_id += 1
        line = encode_request(self._last_id, method, params)
        if self._last_id == HELLO_ID + 1:
            line = hello_line(self._client) + line
        self.write(line)
        return self._last_id

    def write(self, line: bytes) -> None:
        """Write a line; a peer that is gone is noticed by the next `read`."""
        try:
            self.connection.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            # Its last words, why it closed, may still be there to be read.
            return

    def receive(self) -> dict[str, Any]:
        """Wait for the next message but the handshake's.

        Raises:
            ConnectError: The daemon closed the connection or sent nonsense.
            BashdError: The daemon refused the handshake.
        """
        while True:
            message = self.receive_nowait()
            if message is not None:
                return message
            self.read()

    def receive_nowait(self) -> dict[str, Any] | None:
        """Return the next message that has arrived whole, or None.

        Raises:
            ConnectError: The daemon sent nonsense.
            BashdError: The daemon refused the handshake.
        """
        while True:
            try:
                message = self._framer.next_frame()
            except FrameError as error:
                raise ConnectError(nonsense(error, self.far)) from None
            if message is None:
                return None
            if message.get("id") in {HELLO_ID, None} and "method" not in message:
                # An error without an id is about the connection as a whole.
                self.hello = check_hello(result_of(message))
            else:
                return message

    def read(self) -> None:
        """Read from the socket once, waiting for the first byte.

        Raises:
            ConnectError: The daemon closed the connection.
        """
        try:
            data = self.connection.recv(_CHUNK_BYTES)
        except ConnectionResetError:
            data = b""
        except OSError as error:
            raise ConnectError(f"cannot read from the daemon: {error}") from None
        if not data:
            raise self._lost()
        self._framer.receive_data(data)

    def _lost(self) -> ConnectError:
        if self.far is not None:
            return self.far.lost()
        return ConnectError("the daemon closed the connection; see its log")

    def answer(self, request_id: int) -> Any:  # noqa: ANN401 - a JSON value
        """Wait for the answer to *request_id* and return its result.

        Notifications on the way go to `on_notification`; answers to requests that
        nobody waits for any more are dropped.

        Raises:
            BashdError: The daemon's error, as the class it raised.
        """
        while True:
            message = self.receive()
            if "method" in message:
                if self.on_notification is not None:
                    self.on_notification(message["method"], message.get("params") or {})
            elif message.get("id") == request_id:
                return result_of(message)

    def call(self, method: str, params: Mapping[str, object]) -> Any:  # noqa: ANN401
        """Send a request and wait for its result.

        Raises:
            BashdError: The daemon's error, as the class it raised.
        """
        return self.answer(self.send(method, params))


def result_of(message: dict[str, Any]) -> Any:  # noqa: ANN401 - a JSON value
    """Return the result in an answer.

    Raises:
        BashdError: The error in it, as the class the daemon raised.
    """
    if "error" in message:
        raise error_from_object(message["error"])
    return message.get("result")
