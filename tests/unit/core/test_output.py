"""The rules of output against naive models."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bashd.core.output import (
    Spill,
    TailWindow,
    decode_delta,
    first_in_window,
    join_delta,
    next_spill,
    render,
    span_to_read,
)

chunks_of_bytes = st.lists(st.binary(max_size=40), max_size=30)
sizes = st.integers(min_value=1, max_value=60)


def test_tail_is_exact_to_the_byte_where_chunks_straddle_the_cap():
    window = TailWindow(10)
    for chunk in (b"aaaa", b"bbbbbb", b"cc"):
        window.append(chunk)
    assert window.tail() == b"aabbbbbbcc"


def test_one_chunk_longer_than_the_cap_leaves_its_end():
    window = TailWindow(10)
    window.append(b"0123456789abcdef")
    assert window.tail() == b"6789abcdef"
    assert (window.total, window.start) == (16, 6)


@given(chunks_of_bytes, sizes)
def test_window_is_the_end_of_the_stream_whatever_the_chunks(chunks, max_bytes):
    window, stream = TailWindow(max_bytes), b""
    for chunk in chunks:
        window.append(chunk)
        stream += chunk
        assert window.tail() == stream[-max_bytes:]
        assert window.total == len(stream)
        assert window.start == max(0, len(stream) - max_bytes)


@given(chunks_of_bytes, sizes, st.integers(min_value=0, max_value=1500))
def test_a_read_gives_the_rest_or_the_whole_window(chunks, max_bytes, offset):
    window, stream = TailWindow(max_bytes), b"".join(chunks)
    for chunk in chunks:
        window.append(chunk)
    span = window.read(offset)
    slid_out = offset < len(stream) - max_bytes
    assert span.lossy == slid_out
    assert span.data == (stream[-max_bytes:] if slid_out else stream[offset:])
    assert span.end == len(stream)
    assert stream[span.start : span.end] == span.data


@given(chunks_of_bytes, sizes, st.lists(st.booleans(), min_size=30, max_size=30))
def test_reads_in_sequence_deliver_no_byte_twice_and_lose_none_unsaid(
    chunks, max_bytes, reads
):
    window, cursor, stream = TailWindow(max_bytes), 0, b""
    seen, missed = 0, False
    for chunk, read_now in zip(chunks, reads, strict=False):
        window.append(chunk)
        stream += chunk
        if read_now:
            span = window.read(cursor)
            assert span.start >= cursor
            assert stream[span.start : span.end] == span.data
            missed = missed or span.lossy
            seen, cursor = seen + len(span.data), span.end
    assert missed or seen == cursor


@given(st.binary(max_size=80), sizes, st.integers(0, 90), st.integers(0, 90))
def test_a_slice_is_the_asked_range_as_far_as_it_is_kept(
    stream, max_bytes, offset, limit
):
    window = TailWindow(max_bytes)
    window.append(stream)
    span = window.slice(offset, limit)
    oldest = max(0, len(stream) - max_bytes)
    start = min(max(offset, oldest), len(stream))
    assert span.data == stream[start : start + limit]
    assert (span.start, span.lossy) == (start, start > offset)


@given(st.binary(max_size=50), st.binary(min_size=1, max_size=50), sizes)
def test_a_restored_window_goes_on_as_if_it_had_seen_all(before, after, max_bytes):
    whole = TailWindow(max_bytes)
    whole.append(before)
    restored = TailWindow(max_bytes, held=whole.tail(), total=whole.total)
    for window in (whole, restored):
        window.append(after)
    assert restored.tail() == whole.tail()
    assert restored.total == whole.total


def test_skipped_bytes_are_counted_and_what_came_before_them_is_gone():
    window = TailWindow(10)
    window.append(b"old")
    window.append(b"new", skipped=100)
    assert window.tail() == b"new"
    assert (window.total, window.start) == (106, 103)


def test_exactly_the_cap_holds():
    def decide(held: int) -> Spill:
        return next_spill(held, 1, max_bytes=500, max_spill_bytes=10_000, spilled=False)

    assert decide(499) is Spill.HOLD
    assert decide(500) is Spill.CREATE


def test_a_first_overflow_beyond_the_longest_file_makes_none():
    decided = next_spill(0, 8, max_bytes=4, max_spill_bytes=4, spilled=False)
    assert decided is Spill.DROP


@given(chunks_of_bytes, sizes, st.integers(min_value=1, max_value=300))
def test_a_spill_file_that_was_not_dropped_is_the_complete_stream(
    chunks, max_bytes, max_spill_bytes
):
    stream, spill, dropped = b"", b"", False
    for chunk in chunks:
        step = next_spill(
            len(stream),
            len(chunk),
            max_bytes=max_bytes,
            max_spill_bytes=max_spill_bytes,
            spilled=bool(spill),
        )
        stream_before, stream = stream, stream + chunk
        if dropped or step is Spill.DROP:
            dropped, spill = True, b""
        elif step is Spill.CREATE:
            spill = stream_before + chunk
        elif step is Spill.APPEND:
            spill += chunk
    overflows = len(stream) > max_bytes
    assert dropped == (overflows and len(stream) > max_spill_bytes)
    if not dropped:
        assert spill == (stream if overflows else b"")


@given(st.integers(0, 200), st.integers(0, 100), sizes, st.integers(0, 50))
def test_a_read_never_starts_outside_what_is_kept(offset, total, max_bytes, lost):
    first = first_in_window(total, max_bytes, min(lost, total))
    start, lossy = span_to_read(offset, total, first)
    assert first <= start <= total
    assert lossy == (offset < first)


@given(st.binary(max_size=60))
def test_any_bytes_decode(data):
    output = render(data, total=len(data), spill_path=None)
    assert output.text == data.decode("utf-8", "replace")
    assert not output.truncated


@given(st.text(max_size=30), st.lists(st.integers(0, 120), max_size=8))
def test_a_character_split_between_reads_comes_out_whole(text, cuts):
    data = text.encode("utf-8", "surrogatepass")
    edges = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    read, told = 0, ""
    for edge in edges:
        piece, used = decode_delta(data[read:edge], final=edge == len(data))
        told, read = told + piece, read + used
    assert read == len(data)
    assert told == data.decode("utf-8", "replace")


@given(st.binary(max_size=60))
def test_a_delta_keeps_back_at_most_an_unfinished_character(data):
    text, used = decode_delta(data, final=False)
    assert len(data) - used <= 3
    assert text == data[:used].decode("utf-8", "replace")
    assert decode_delta(data, final=True) == (
        data.decode("utf-8", "replace"),
        len(data),
    )


def test_a_delta_names_stderr_on_a_line_of_its_own():
    assert join_delta("out", "err\n") == "out\n[stderr]\nerr\n"
    assert join_delta("out\n", "err") == "out\n[stderr]\nerr"
    assert join_delta("", "err") == "[stderr]\nerr"
    assert join_delta("out", "") == "out"


def test_only_a_truncated_stream_names_its_file():
    whole = render(b"abc", total=3, spill_path="/x")
    assert (whole.truncated, whole.spill_path, whole.bytes) == (False, None, 3)
    cut = render(b"bc", total=3, spill_path="/x")
    assert (cut.text, cut.truncated, cut.spill_path) == ("bc", True, "/x")
