"""The audit log's chain: whatever is done to a line, it shows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.audit_chain import (
    GENESIS,
    Head,
    Link,
    open_line,
    seal,
    verify,
)

values = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(["x"])
)
entries = st.dictionaries(
    st.text(min_size=1, max_size=6).filter(lambda k: k not in ("seq", "prev", "hash")),
    values,
    max_size=4,
)
logs = st.lists(entries, min_size=2, max_size=8)


START = Link()


def written(log: list[dict[str, Any]], after: Link = START) -> tuple[list[bytes], Head]:
    lines: list[bytes] = []
    end = after
    for entry in log:
        line, end = seal(entry, end)
        lines.append(line)
    return lines, Head(after.number + 1, end)


def problems(lines: list[bytes], head: Head | None) -> list[str]:
    return [p.what for p in verify([("audit.jsonl", lines)], head).problems]


@given(logs)
def test_an_untouched_log_has_no_problems(log):
    lines, head = written(log)
    verdict = verify([("audit.jsonl", lines)], head)
    assert verdict.problems == []
    assert (verdict.lines, verdict.first, verdict.last) == (len(log), 1, head.last)


@given(logs)
def test_lines_are_json_that_gives_the_entry_back(log):
    lines, _ = written(log)
    for number, (line, entry) in enumerate(zip(lines, log, strict=True), 1):
        assert b"\n" not in line
        found = json.loads(line)
        assert (found.pop("seq"), len(found.pop("hash"))) == (number, 64)
        del found["prev"]
        assert found == entry


@given(logs, st.data())
def test_a_removed_line_shows_wherever_it_was(log, data):
    lines, head = written(log)
    del lines[data.draw(st.integers(0, len(lines) - 1))]
    assert problems(lines, head)


@given(logs, st.data())
def test_a_changed_byte_shows(log, data):
    lines, head = written(log)
    index = data.draw(st.integers(0, len(lines) - 1))
    raw = bytearray(lines[index])
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    lines[index] = bytes(raw)
    assert problems(lines, head)


@given(logs, st.data())
def test_two_lines_that_change_places_show(log, data):
    lines, head = written(log)
    one = data.draw(st.integers(0, len(lines) - 2))
    other = data.draw(st.integers(one + 1, len(lines) - 1))
    lines[one], lines[other] = lines[other], lines[one]
    assert problems(lines, head)


@given(logs, st.data())
def test_a_line_written_twice_or_added_shows(log, data):
    lines, head = written(log)
    index = data.draw(st.integers(0, len(lines) - 1))
    assert problems([*lines[: index + 1], lines[index], *lines[index + 1 :]], head)
    forged, _ = seal({"event": "forged"}, Link(index, GENESIS))
    assert problems([*lines[: index + 1], forged, *lines[index + 1 :]], head)


@given(logs)
def test_a_replaced_chain_shows_against_the_head(log):
    lines, head = written(log)
    other, _ = written([{**entry, "forged": True} for entry in log])
    assert lines != other
    assert problems(other, head)


@given(logs)
def test_without_a_head_the_log_is_not_called_whole(log):
    lines, _ = written(log)
    assert problems(lines, None) == [
        "there is no head file, so its end cannot be checked"
    ]


@given(logs, st.integers(1, 7))
def test_a_log_of_several_files_is_one_chain(log, cut):
    lines, head = written(log)
    files = [("old", lines[:cut]), ("new", lines[cut:])]
    assert verify(files, head).problems == []
    assert verify(reversed(files), head).problems or len(log) <= cut


@given(logs, st.integers(2, 1000))
def test_a_log_may_begin_where_older_files_were_rotated_away(log, number):
    lines, head = written(log, Link(number, "ab" * 32))
    assert problems(lines, head) == []
    assert problems(lines[1:], head) == [
        f"its oldest lines are missing: it must begin with {number + 1}"
    ]


@given(logs)
def test_lines_newer_than_the_head_are_no_problem(log):
    # The daemon was killed between the lines and the head.
    lines, head = written(log)
    more, _ = seal({"event": "run"}, head.last)
    assert problems([*lines, more], head) == []


def test_each_break_is_told_once_and_the_rest_is_checked():
    lines, head = written([{"n": n} for n in range(9)])
    lines[4] = lines[4].replace(b'"n":4', b'"n":5')
    del lines[7]
    found = verify([("audit.jsonl", lines)], head).problems
    assert [(p.line, p.what) for p in found] == [
        (5, "altered, or no line of the log"),
        (8, "1 line is missing before it"),
    ]


@given(st.binary(max_size=200))
def test_any_bytes_can_be_looked_at(raw):
    line = open_line(raw)
    assert line is None or line.link.number is not None


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"first": "1", "seq": 1, "hash": ""}', "null"]
)
def test_a_wrong_head_file_is_an_error(text):
    with pytest.raises(ValueError, match="not a head file"):
        Head.parse(text)


@given(st.integers(1, 10**12), st.integers(0, 10**12))
def test_heads_come_back(first, last):
    head = Head(first, Link(last, "ab" * 32))
    assert Head.parse(head.text()) == head
