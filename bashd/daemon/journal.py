"""Where log records go: the journal with fields if stderr leads there, else stderr.

One line a record on stderr, because that is what people, files and supervisors read.
Under systemd, stderr is a stream to the journal; then records go to journald's own
socket instead, with priority, place in the code and any fields of the record
(``extra={"bashd": {"session": …}}``) beside the message. What a client sent may be in
a message, so control characters are escaped: a log line is one line.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Final, cast

FIELDS: Final = "bashd"
"""Attribute of a record that holds its fields, a mapping of lower-case names."""

_JOURNAL_SOCKET: Final = "/run/systemd/journal/socket"
_SEALS: Final = (
    fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_PRIORITIES: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)
_DEBUG_PRIORITY: Final = 7


def set_up_logging(environ: Mapping[str, str], level: int = logging.INFO) -> None:
    """Send every record of this process where this process's stderr leads."""
    handler: logging.Handler | None = None
    if leads_to_journal(environ.get("JOURNAL_STREAM", ""), sys.stderr.fileno()):
        handler = JournalHandler.connect()
    if handler is None:
        handler = logging.StreamHandler()
        handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def is_attached() -> bool:
    """Whether this process's records go to the journal, with their fields."""
    return any(isinstance(h, JournalHandler) for h in logging.getLogger().handlers)


def leads_to_journal(stream: str, fd: int) -> bool:
    """Whether *fd* is the stream that systemd connected to the journal.

    The variable is inherited, so somebody who redirects stderr has it as well.
    Source: systemd.exec(5), JOURNAL_STREAM.
    """
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


def escape_controls(text: str) -> str:
    """Return *text* with control characters, but no newline or tab, escaped."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def priority_of(level: int) -> int:
    """Return the syslog priority of a logging level."""
    for bound, priority in _PRIORITIES:
        if level >= bound:
            return priority
    return _DEBUG_PRIORITY


class LineFormatter(logging.Formatter):
    """``bashd: level: message``; info, being the normal case, names no level."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and below it a traceback if there is one."""
        level = (
            "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        )
        message = escape_controls(record.getMessage()).replace("\n", "\\n")
        fields = "".join(f" {name}={value!r}" for name, value in fields_of(record))
        line = f"bashd: {level}{message}{fields}"
        if record.exc_info:
            line += "\n" + escape_controls(self.formatException(record.exc_info))
        return line


def fields_of(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """Return the fields a record carries beside its message."""
    fields = getattr(record, FIELDS, None)
    if isinstance(fields, Mapping):
        yield from cast("Mapping[str, object]", fields).items()


class JournalHandler(logging.Handler):
    """Sends records to journald's native socket.

    Source: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._socket = sock
        self._exceptions = logging.Formatter()

    @classmethod
    def connect(cls, address: str = _JOURNAL_SOCKET) -> JournalHandler | None:
        """Return a handler; None where no journald listens."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            sock.connect(address)
        except OSError:
            sock.close()
            return None
        # A full journal must not stop the daemon: what it does not take is lost.
        sock.settimeout(0)
        return cls(sock)

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            self._send(b"".join(self._entry(record)))
        except OSError:
            self.handleError(record)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        super().close()

    def _entry(self, record: logging.LogRecord) -> Iterator[bytes]:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self._exceptions.formatException(record.exc_info)
        yield encode_field("MESSAGE", escape_controls(message))
        yield encode_field("PRIORITY", str(priority_of(record.levelno)))
        yield encode_field("SYSLOG_IDENTIFIER", "bashd")
        yield encode_field("LOGGER", record.name)
        yield encode_field("CODE_FILE", record.pathname)
        yield encode_field("CODE_LINE", str(record.lineno))
        yield encode_field("CODE_FUNC", record.funcName or "")
        for name, value in fields_of(record):
            yield encode_field(f"BASHD_{name.upper()}", escape_controls(str(value)))

    def _send(self, entry: bytes) -> None:
        try:
            self._socket.send(entry, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            # Too large for a datagram: a sealed memfd instead.
            fd = os.memfd_create("journal", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
            try:
                os.write(fd, entry)
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
                socket.send_fds(self._socket, [b""], [fd])
            finally:
                os.close(fd)


def encode_field(name: str, value: str) -> bytes:
    """Encode one field of an entry; values of several lines carry their length."""
    raw = value.encode(errors="replace")
    if b"\n" not in raw:
        return b"%b=%b\n" % (name.encode(), raw)
    return b"%b\n%b%b\n" % (name.encode(), len(raw).to_bytes(8, "little"), raw)
