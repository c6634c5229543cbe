"""Log records on stderr and in a journal that the test plays."""

from __future__ import annotations

import array
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.daemon.audit_file import AuditFile
from bashd.daemon.audit_log import AuditLog
from bashd.daemon.journal import (
    JournalHandler,
    LineFormatter,
    encode_field,
    escape_controls,
    leads_to_journal,
)


def record(
    message: str, level: int = logging.INFO, **fields: object
) -> logging.LogRecord:
    made = logging.LogRecord("bashd.test", level, "/f.py", 7, message, (), None, "func")
    if fields:
        made.bashd = fields
    return made


def parse_entry(data: bytes) -> dict[str, str]:
    """Read one entry as journald does."""
    found: dict[str, str] = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(data[:8], "little")
            value, data = data[8 : 8 + size], data[8 + size + 1 :]
        found[name.decode()] = value.decode()
    return found


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "socket"))
        sock.settimeout(5)
        yield sock


@pytest.fixture
def handler(tmp_path: Path, journald: socket.socket) -> Iterator[JournalHandler]:
    del journald
    made = JournalHandler.connect(str(tmp_path / "socket"))
    assert made is not None
    yield made
    made.close()


# stderr


def test_a_line_says_what_it_is():
    formatter = LineFormatter()
    assert formatter.format(record("listening on /x")) == "bashd: listening on /x"
    bad = record("it broke", logging.ERROR, session="s1")
    assert formatter.format(bad) == "bashd: error: it broke session='s1'"


def test_what_a_client_sent_cannot_forge_a_line():
    text = LineFormatter().format(record("named \x1b[2J\r\nbashd: root logged in\x85"))
    assert "\n" not in text
    assert text == "bashd: named \\x1b[2J\\x0d\\nbashd: root logged in\\x85"


def test_a_traceback_follows_below():
    with pytest.raises(ValueError, match="invalid literal") as caught:
        int("inv\x1bside")
    made = record("failed", logging.ERROR)
    made.exc_info = (caught.type, caught.value, caught.tb)
    text = LineFormatter().format(made)
    assert text.startswith("bashd: error: failed\nTraceback")
    assert "ValueError" in text
    assert "\x1b" not in text


@given(st.text())
def test_no_text_keeps_a_control_character(text: str):
    escaped = escape_controls(text)
    assert all(char >= " " or char in "\t\n" for char in escaped)


# The journal


def test_a_record_has_fields(journald: socket.socket, handler: JournalHandler):
    handler.handle(record("two\nlines", logging.WARNING, session="s1", uid=5))
    assert parse_entry(journald.recv(65536)) == {
        "MESSAGE": "two\nlines",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "bashd",
        "LOGGER": "bashd.test",
        "CODE_FILE": "/f.py",
        "CODE_LINE": "7",
        "CODE_FUNC": "func",
        "BASHD_SESSION": "s1",
        "BASHD_UID": "5",
    }


@given(st.text(), st.text())
def test_any_value_survives_its_encoding(first: str, second: str):
    clean = [text.encode(errors="replace").decode() for text in (first, second)]
    data = encode_field("A", first) + encode_field("B", second)
    assert parse_entry(data) == dict(zip("AB", clean, strict=True))


def test_a_record_too_large_for_a_datagram_goes_as_a_sealed_file(
    journald: socket.socket, handler: JournalHandler
):
    handler.handle(record("x" * 1_000_000))
    data, control, _, _ = journald.recvmsg(64, socket.CMSG_SPACE(4))
    assert data == b""
    (fd,) = array.array("i", control[0][2])
    # As journald reads it: from the start, wherever the sender's offset is.
    entry = os.pread(fd, 2_000_000, 0)
    assert parse_entry(entry)["MESSAGE"] == "x" * 1_000_000
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"altered", 0)
    os.close(fd)


def test_a_full_journal_does_not_stop_the_daemon(handler: JournalHandler):
    for _ in range(10_000):
        handler.handle(record("again"))


def test_without_journald_there_is_no_handler(tmp_path: Path):
    assert JournalHandler.connect(str(tmp_path / "nowhere")) is None


def test_stderr_leads_to_the_journal_only_if_it_is_that_stream():
    read_fd, write_fd = os.pipe()
    found = os.fstat(write_fd)
    stream = f"{found.st_dev}:{found.st_ino}"
    assert leads_to_journal(stream, write_fd)
    # The variable is inherited by programs whose stderr leads elsewhere.
    assert not leads_to_journal(stream, 0)
    assert not leads_to_journal("", write_fd)
    os.close(read_fd)
    os.close(write_fd)
    assert not leads_to_journal(stream, write_fd)


@pytest.mark.trio
async def test_entries_of_the_audit_log_are_fields_with_their_lines_hash(
    handler: JournalHandler, journald: socket.socket, tmp_path: Path
):
    path = tmp_path / "audit.jsonl"
    log = AuditLog(AuditFile(path, rotate_bytes=1 << 20, keep_files=1))
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    try:
        log.note("run", run_id="5d41", user="alice", denials=[], signal=None)
        await log.close()
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    entry = parse_entry(journald.recv(64 * 1024))
    line = json.loads(path.read_text())
    assert entry["MESSAGE"] == "audit: run 5d41"
    assert (entry["BASHD_EVENT"], entry["BASHD_USER"]) == ("run", "alice")
    assert entry["BASHD_AUDIT_SEQ"] == "1"
    assert entry["BASHD_AUDIT_HASH"] == line["hash"]
    assert "BASHD_SIGNAL" not in entry
