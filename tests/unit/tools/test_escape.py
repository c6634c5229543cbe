"""What a person is shown cannot move a cursor or fake a line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bashd.tools.escape import visible_block, visible_line

anything = st.text(st.characters(categories=None))


@given(anything)
def test_a_visible_line_is_printable_and_one_line(text: str) -> None:
    shown = visible_line(text)
    assert shown.isprintable()
    shown.encode()


@given(anything)
def test_every_line_of_a_block_is_indented(text: str) -> None:
    assert all(line.startswith("    ") for line in visible_block(text).split("\n"))


def test_known_tricks_are_spelled_out() -> None:
    assert visible_line("a\x1b]52;c;AAAA\x07\u202eb\ud800\r\n") == (
        r"a\x1b]52;c;AAAA\x07\u202eb\ud800\r\n"
    )


def test_ordinary_text_is_left_alone() -> None:
    assert visible_block("echo 'Größe'\n  ls | wc") == "    echo 'Größe'\n      ls | wc"
