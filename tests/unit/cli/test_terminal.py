"""Bytes reach files as they are and terminals as something harmless."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tty
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bashd.cli.table import amount, cells, duration, render_table
from bashd.cli.terminal import OutputClosedError, Sink, visible, visible_line

ODD = b"a\xff\x1b[31m\r\n\x00\x9b\xc2\x9b"


def on_terminal(*pieces: bytes, line: str | None = None) -> str:
    """Write to a terminal and return what its other end reads."""
    master, slave = pty.openpty()
    # Raw: the line discipline would make its own \r.
    tty.setraw(slave)
    sink = Sink(slave)
    assert sink.is_terminal
    for piece in pieces:
        sink.write(piece)
    sink.finish()
    if line is not None:
        sink.write_line(line)
    os.write(slave, b"\0end")
    seen = b""
    while not seen.endswith(b"\0end"):
        seen += os.read(master, 65536)
    os.close(master)
    os.close(slave)
    return seen.removesuffix(b"\0end").decode()


def test_a_file_gets_the_very_bytes(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("wb") as file:
        Sink(file.fileno()).write(ODD * 5000)
    assert path.read_bytes() == ODD * 5000


def test_a_pipe_gets_the_very_bytes() -> None:
    read_fd, write_fd = os.pipe()
    Sink(write_fd).write(ODD)
    os.close(write_fd)
    assert os.read(read_fd, 1000) == ODD
    os.close(read_fd)


def test_a_terminal_gets_nothing_that_it_would_obey() -> None:
    assert on_terminal(ODD) == "a\\xff\\x1b[31m\n\\x00\\x9b\\x9b"


def test_a_clipboard_attack_is_only_text() -> None:
    assert on_terminal(b"\x1b]52;c;Y3VybA==\x07") == "\\x1b]52;c;Y3VybA==\\x07"


def test_a_character_in_two_pieces_is_one_character() -> None:
    assert on_terminal("é€".encode()[:1], "é€".encode()[1:4], b"\xac") == "é€"
    assert on_terminal(b"x\xc3") == "x\\xc3"


def test_a_progress_bar_becomes_lines() -> None:
    assert on_terminal(b"10%\r", b"20%\r\n", b"30%\r") == "10%\n20%\n30%\n"


def test_a_marker_begins_a_line_of_its_own() -> None:
    assert on_terminal(b"no newline", line="[exit code: 1]").endswith(
        "newline\n[exit code: 1]\n"
    )
    assert on_terminal(b"line\n", line="[x]") == "line\n[x]\n"
    assert on_terminal(line="[x]") == "[x]\n"


@settings(deadline=None)
@given(st.text())
def test_visible_text_has_no_control_and_no_direction_of_its_own(text: str) -> None:
    for char in visible(text):
        assert char in "\n\t" or not (ord(char) < 32 or 127 <= ord(char) < 160)
        assert not 0x202A <= ord(char) <= 0x202E
        assert not 0x2066 <= ord(char) <= 0x2069
    assert "\n" not in visible_line(text)


def test_ordinary_writing_is_left_alone() -> None:
    text = "naïve 日本語\u3000\u00a0 👩\u200d👩 ελ\tx\n"
    assert visible(text) == text


def test_a_reader_that_is_gone_is_noticed() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with pytest.raises(OutputClosedError):
        Sink(write_fd).write(b"x")
    os.close(write_fd)


def test_a_reader_that_takes_nothing_is_not_waited_for_after_a_signal() -> None:
    read_fd, write_fd = os.pipe()
    sink = Sink(write_fd, may_wait=lambda: False)
    sink.write(b"x" * 1_000_000)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as rest:
        taken = len(rest.read())
    assert 0 < taken <= 65536


def test_a_descriptor_that_somebody_made_nonblocking_still_takes_all() -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    if os.fork() == 0:
        with os.fdopen(read_fd, "rb") as reader:
            os._exit(0 if reader.read(300_000) == b"y" * 300_000 else 1)
    Sink(write_fd).write(b"y" * 300_000)
    os.close(write_fd)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    os.close(read_fd)


# --- tables -----------------------------------------------------------------------------


def test_columns_line_up_whatever_is_in_them() -> None:
    table = render_table(("ID", "CMD"), [("1", "ls"), ("日本", "a\nb\x1b[0m")])
    assert table == "ID    CMD\n1     ls\n日本  a\\nb\\x1b[0m\n"


def test_the_last_column_is_cut_to_the_terminal() -> None:
    table = render_table(("ID", "CMD"), [("1", "x" * 50)], width=20)
    line = table.splitlines()[1]
    assert cells(line) <= 20
    assert line.endswith("…")
    assert "x" * 50 in render_table(("ID", "CMD"), [("1", "x" * 50)])


def test_a_bold_header_ends_where_it_ends() -> None:
    first = render_table(("ID",), [], bold=True)
    assert first == "\x1b[1mID\x1b[0m\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"),
        (9.96, "10.0s"),
        (12, "12s"),
        (75, "1m15s"),
        (3600, "1h00m"),
        (90000, "1d01h"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.0K"),
        (1536 * 1024, "1.5M"),
        (1 << 50, "1024.0T"),
    ],
)
def test_amounts_have_a_unit(count: int, text: str) -> None:
    assert amount(count) == text


@pytest.mark.parametrize(
    ("env", "stressed"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_a_table_is_stressed_on_a_terminal_that_wants_it(
    env: dict[str, str], *, stressed: bool
) -> None:
    program = (
        "from bashd.cli.table import table_for_stdout as t; print(t(['A'], [['b']]))"
    )
    reader, terminal = os.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", program], env=env, stdout=terminal, check=True
        )
        printed = os.read(reader, 4096)
    finally:
        os.close(reader)
        os.close(terminal)
    assert b"A" in printed
    assert (b"\x1b" in printed) is stressed
