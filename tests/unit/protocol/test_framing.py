"""Lines and strict JSON: every split gives the same frames, every oddity one error."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bashd.core.errors import FrameError
from bashd.protocol.framing import MAX_DEPTH, Framer, decode_frame

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), json_values, max_size=4)


def collect(framer: Framer) -> list[object]:
    """Take everything out; an error appears as its text."""
    found: list[object] = []
    while True:
        try:
            frame = framer.next_frame()
        except FrameError as error:
            found.append(str(error))
            if framer.broken:
                return found
            continue
        if frame is None:
            return found
        found.append(frame)


def split_at(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(objects, max_size=3), st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_split_yields_the_objects_that_were_sent(
    sent: list[object], ascii_only: bool
) -> None:
    stream = b"".join(
        json.dumps(item, ensure_ascii=ascii_only).encode() + b"\n" for item in sent
    )
    for cut in range(min(len(stream), 100) + 1):
        framer = Framer()
        framer.receive_data(stream[:cut])
        found = collect(framer)
        framer.receive_data(stream[cut:])
        assert found + collect(framer) == sent
        assert framer.partial_bytes == 0


@given(st.binary(max_size=120), st.lists(st.integers(0), max_size=6))
@settings(deadline=None)
def test_any_bytes_give_the_same_frames_and_errors_however_they_are_split(
    stream: bytes, cuts: list[int]
) -> None:
    whole = Framer(max_bytes=20)
    whole.receive_data(stream)
    pieces = Framer(max_bytes=20)
    found: list[object] = []
    for piece in split_at(stream, cuts):
        pieces.receive_data(piece)
        if not pieces.broken:
            found += collect(pieces)
    assert found + (collect(pieces) if pieces.broken else []) == collect(whole)
    assert pieces.broken == whole.broken


def test_a_line_exactly_at_the_cap_passes_and_one_byte_more_breaks_the_framing() -> (
    None
):
    line = b'{"a":"' + b"x" * 12 + b'"}'
    framer = Framer(max_bytes=len(line))
    framer.receive_data(line + b"\n")
    assert framer.next_frame() == {"a": "x" * 12}
    framer.receive_data(b" " + line + b"\n")
    assert framer.broken
    with pytest.raises(FrameError, match="longer than 20 bytes"):
        framer.next_frame()
    with pytest.raises(FrameError, match="longer than 20 bytes"):
        framer.next_frame()


def test_a_line_that_never_ends_is_refused_without_being_held() -> None:
    framer = Framer(max_bytes=1000)
    for _ in range(100):
        framer.receive_data(b"x" * 100)
        assert framer.partial_bytes <= 1000
    assert framer.broken
    assert framer.partial_bytes == 0


def test_what_came_whole_before_an_oversized_line_is_still_delivered() -> None:
    framer = Framer(max_bytes=10)
    framer.receive_data(b'{"a":1}\n' + b"x" * 11)
    assert framer.next_frame() == {"a": 1}
    with pytest.raises(FrameError):
        framer.next_frame()


def test_a_bad_line_does_not_cost_the_next_one() -> None:
    framer = Framer()
    framer.receive_data(b'nonsense\n{"a":1}\n')
    with pytest.raises(FrameError):
        framer.next_frame()
    assert not framer.broken
    assert framer.next_frame() == {"a": 1}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a":1} {"b":2}', "not valid JSON"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "-Infinity"),
        (b'{"a":1e999}', "out of range"),
        (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a":1,"b":2,"a":1}', "'a' appears twice"),
        (b'{"p":{"a":1,"a":2}}', "'a' appears twice"),
        (b'{"a":"\xff"}', "not valid Unicode"),
        (b'{"a":"\xed\xa0\x80"}', "not valid Unicode"),
        (b'{"a":"\\ud800"}', "not valid Unicode"),
        (b'{"a":"\\uDfff"}', "not valid Unicode"),
        (b'[{"a":1}]', "batches are not supported"),
        (b'"text"', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"7", "not a JSON object"),
    ],
)
def test_refused_lines_say_why(line: bytes, says: str) -> None:
    with pytest.raises(FrameError, match=says):
        decode_frame(line)


def test_a_surrogate_pair_spelled_as_escapes_is_one_character() -> None:
    assert decode_frame(b'{"a":"\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_depth_is_bounded_and_brackets_inside_strings_do_not_count() -> None:
    assert decode_frame(nested(MAX_DEPTH))
    with pytest.raises(FrameError, match="nests deeper than 64"):
        decode_frame(nested(MAX_DEPTH + 1))
    text = '{[{["\\' * 1000
    assert decode_frame(json.dumps({"command": text}).encode()) == {"command": text}


def test_many_shallow_objects_are_not_deep() -> None:
    many = {"tasks": [{"ports": [80]} for _ in range(500)]}
    assert decode_frame(json.dumps(many).encode()) == many


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 1_000_000,
        b'"' + b'\\"' * 500_000 + b"[" * 100,
        b'"\\' * 500_000 + b"[" * 100,
        b'{"a":"' + b"\\\\" * 500_000 + b"[" * 100,
    ],
)
def test_a_hostile_megabyte_is_refused_in_linear_time(line: bytes) -> None:
    started = time.perf_counter()
    with pytest.raises(FrameError):
        decode_frame(line)
    # A quadratic scan of these takes minutes.
    assert time.perf_counter() - started < 10
