"""Stores on a real disk: windows, spill files, sliding files, recovery."""

from __future__ import annotations

import json
import os
import resource
import select
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bashd.daemon.output import StoreState, StreamStore
from tests.unit.daemon.output_stage import (
    full_pipe,
    open_descriptors_to,
    pour,
    stage,
)

MIB = 1 << 20


@pytest.fixture(params=[False, True], ids=["memory", "file"])
def in_file(request):
    return request.param


# C153 to C161: what is kept of a foreground stream.


def test_exactly_the_cap_is_not_truncated_and_makes_no_file(made):
    store = made.store(cap=500)
    store.write(b"x" * 500)
    output = store.settle()
    assert (output.truncated, output.spill_path, output.bytes) == (False, None, 500)
    assert made.files() == []


def test_tail_is_byte_exact(made):
    store = made.store(cap=10)
    for chunk in (b"aaaa", b"bbbbbb", b"cc"):
        store.write(chunk)
    assert store.settle().text == "aabbbbbbcc"
    assert made.only_file() == b"aaaabbbbbbcc"


def test_an_overflowing_chunk_is_in_the_file_whole(made):
    store = made.store(cap=10)
    store.write(b"0123456789abcdef")
    output = store.settle()
    assert (output.text, output.truncated, output.bytes) == ("6789abcdef", True, 16)
    assert output.spill_path == str(made.files()[0])
    assert made.only_file() == b"0123456789abcdef"


def test_spill_files_are_private_under_umask_zero(made):
    before = os.umask(0)
    store = made.store("stderr", cap=1)
    store.write(b"ab")
    os.umask(before)
    (path,) = made.files()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.name.endswith("-stderr.log")


def test_a_first_chunk_beyond_the_longest_file_makes_none(made):
    store = made.store(cap=4, spill=4)
    store.write(b"12345678")
    assert made.files() == []
    output = store.settle()
    assert (output.text, output.truncated, output.spill_path) == ("5678", True, None)


def test_a_stream_beyond_the_longest_file_loses_it_and_keeps_the_exact_window(made):
    store = made.store(cap=4, spill=8)
    store.write(b"123456")
    assert store.spill_path == str(made.files()[0])
    store.write(b"789")
    assert made.files() == []
    assert store.spill_path is None
    store.write(b"ab")
    output = store.settle()
    assert (output.text, output.spill_path, output.bytes) == ("89ab", None, 11)


def test_a_close_that_fails_keeps_the_tail_and_withholds_the_path(made):
    store = made.store(cap=4)
    store.write(b"123456")
    (fd,) = open_descriptors_to(made.files()[0])
    os.close(fd)
    output = store.settle()
    assert (output.text, output.truncated, output.spill_path) == ("3456", True, None)


def test_streams_have_caps_of_their_own(made):
    stdout, stderr = made.store(cap=500), made.store("stderr", cap=100)
    for store in (stdout, stderr):
        store.write(b"x" * 500)
    assert not stdout.settle().truncated
    assert stderr.settle().truncated


def test_invalid_utf8_is_replaced(made, in_file):
    store = made.store(in_file=in_file)
    store.write(b"ok\xff\xfe")
    assert store.settle().text == "ok\ufffd\ufffd"


# Both places behave alike.


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=12),
    st.integers(1, 60),
    st.integers(1, 200),
    st.booleans(),
)
def test_a_store_is_its_model(chunks, cap, spill, in_file):
    with stage() as made:
        store = made.store(in_file=in_file, cap=cap, spill=spill)
        stream, cursor = b"", 0
        for chunk in chunks:
            pour(store, chunk)
            stream += chunk
            assert (store.total, store.tail()) == (len(stream), stream[-cap:])
            span = store.read(cursor)
            assert span.data == stream[max(cursor, len(stream) - cap) :]
            assert span.lossy == (cursor < len(stream) - cap)
            cursor = span.end
        output = store.settle()
        assert output.bytes == len(stream)
        assert output.truncated == (len(stream) > cap)
        whole = cap < len(stream) <= spill
        assert (output.spill_path is not None) == whole
        if output.spill_path is not None:
            assert made.only_file() == stream
        assert store.tail() == stream[-cap:]
        assert store.kept_from == (
            0
            if whole or (in_file and len(stream) <= spill)
            else max(0, len(stream) - cap)
        )
        kept = store.read_range(0, 1000)
        assert kept.data == stream[kept.start :]
        assert kept.start == store.kept_from


def test_a_range_of_a_whole_file_reaches_before_the_window(made, in_file):
    store = made.store(in_file=in_file, cap=4)
    pour(store, b"0123456789")
    for _ in ("running", "settled"):
        span = store.read_range(2, 5)
        assert (span.data, span.start, span.lossy) == (b"23456", 2, False)
        assert store.read_range(99, 5).data == b""
        store.settle()


def test_settling_twice_says_the_same(made, in_file):
    store = made.store(in_file=in_file, cap=4)
    pour(store, b"0123456789")
    assert store.settle() == store.settle()


def test_a_settled_store_holds_no_descriptor(made, in_file):
    store = made.store(in_file=in_file, cap=4)
    pour(store, b"0123456789")
    (path,) = made.files()
    assert open_descriptors_to(path)
    store.settle()
    assert not open_descriptors_to(path)
    assert store.read(6).data == b"6789"
    assert not open_descriptors_to(path)


def test_discard_removes_the_file(made, in_file):
    store = made.store(in_file=in_file, cap=4)
    pour(store, b"0123456789")
    store.discard()
    assert made.files() == []
    assert store.read(0).data == b""
    assert store.total == 10


# Streams that go to a file from the start.


def test_a_stream_that_says_nothing_makes_no_file(made):
    store = made.store(in_file=True)
    with full_pipe(b"") as (reader, _):
        assert store.splice_from(reader, 100) == 0
    assert store.settle().bytes == 0
    assert made.files() == []


def test_an_empty_pipe_is_not_its_end(made):
    store = made.store(in_file=True)
    with (
        full_pipe(b"", keep_writer=True) as (reader, _),
        pytest.raises(BlockingIOError),
    ):
        store.splice_from(reader, 100)
    pour(store, b"now there is a file")
    with (
        full_pipe(b"", keep_writer=True) as (reader, _),
        pytest.raises(BlockingIOError),
    ):
        store.splice_from(reader, 100)


def test_no_more_than_the_limit_is_taken(made, in_file):
    store = made.store(in_file=in_file, cap=100)
    with full_pipe(b"0123456789") as (reader, _):
        assert store.splice_from(reader, 4) == 4
        assert store.tail() == b"0123"


def test_a_short_background_stream_advertises_no_file(made):
    store = made.store(in_file=True, cap=100)
    pour(store, b"short")
    assert (store.spill_path, store.settle().spill_path) == (None, None)


def test_a_sliding_file_keeps_the_last_window_and_gives_its_blocks_back(made):
    store = made.store(in_file=True, cap=5000, spill=MIB)
    stream = b"".join(b"%08d\n" % n for n in range(MIB))
    pour(store, stream)
    (path,) = made.files()
    assert store.spill_path is None
    assert path.stat().st_size == len(stream) == store.total
    assert path.stat().st_blocks * 512 < 3 * MIB
    output = store.settle()
    assert output.text == stream[-5000:].decode()
    assert (output.spill_path, output.bytes) == (None, len(stream))
    assert path.stat().st_blocks * 512 <= 16384
    assert store.read_range(0, len(stream)).data == stream[-5000:]


def test_a_reader_during_a_move_sees_the_window_of_before(made):
    store = made.store(in_file=True, cap=100, spill=1000)
    before = os.urandom(3 * MIB)
    pour(store, before)
    with full_pipe(b"z" * 5000) as (reader, _):
        move = store.begin(MIB)
        moved = move.run(reader)
        assert store.tail() == before[-100:]
        store.commit(move, moved)
    assert store.tail() == b"z" * 100


def test_what_its_owner_cut_short_is_lossy_and_never_advertised(made):
    store = made.store(in_file=True, cap=4)
    pour(store, b"0123456789")
    os.truncate(made.files()[0], 8)
    span = store.read(6)
    assert (span.data, span.end, span.lossy) == (b"67", 10, True)
    assert store.settle().spill_path is None


def test_a_file_exchanged_by_its_owner_is_not_advertised(made):
    store = made.store(in_file=True, cap=4)
    pour(store, b"0123456789")
    (path,) = made.files()
    path.rename(path.with_suffix(".moved"))
    path.write_bytes(b"x" * 10)
    assert store.settle().spill_path is None


def test_a_name_that_is_taken_costs_the_file_and_not_the_stream(made):
    losses = []
    store = made.store(in_file=True, cap=4, on_lost=lambda: losses.append(1))
    (made.folder / store.state().name).symlink_to("/nowhere")
    pour(store, b"0123456789")
    output = store.settle()
    assert (output.text, output.bytes, output.spill_path) == ("6789", 10, None)
    assert losses == [1]


def test_without_descriptors_a_stream_goes_on_in_memory(made):
    store = made.store(in_file=True, cap=4)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with full_pipe(b"0123456789") as (reader, _):
        limit = os.dup(0)
        os.close(limit)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            assert store.splice_from(reader, 100) == 10
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (store.tail(), store.total, made.files()) == (b"6789", 10, [])


# A new daemon goes on with what it finds.


def reopened(made, store: StreamStore) -> StreamStore:
    state = StoreState(**asdict(store.state()))
    return StreamStore.reopen(state, directory=made.directory)


def test_a_reopened_stream_goes_on_where_its_file_ends(made):
    store = made.store(in_file=True, cap=8)
    state = store.state()
    pour(store, b"first ")
    again = StreamStore.reopen(state, directory=made.directory)
    assert (again.total, again.tail()) == (6, b"first ")
    pour(again, b"second")
    assert made.only_file() == b"first second"
    assert again.settle().text == "t second"


def test_a_stream_that_had_said_nothing_goes_on_in_a_file(made):
    store = reopened(made, made.store(in_file=True))
    pour(store, b"hello")
    assert made.only_file() == b"hello"


def test_a_settled_stream_reads_the_same_after_reopening(made):
    store = made.store(in_file=True, cap=4)
    pour(store, b"0123456789")
    output = store.settle()
    again = reopened(made, store)
    assert again.settle() == output
    assert not open_descriptors_to(made.files()[0])


def test_a_slid_file_is_reopened_with_its_window(made):
    store = made.store(in_file=True, cap=1000, spill=MIB)
    stream = os.urandom(4 * MIB)
    pour(store, stream)
    again = reopened(made, store)
    assert (again.total, again.tail()) == (len(stream), stream[-1000:])
    assert again.spill_path is None
    pour(again, b"end")
    assert again.settle().bytes == len(stream) + 3
    assert again.tail() == (stream + b"end")[-1000:]


def test_a_lost_file_is_lossy_and_the_stream_goes_on(made):
    store = made.store(in_file=True, cap=8)
    pour(store, b"first")
    made.files()[0].unlink()
    again = reopened(made, store)
    span = again.read(0)
    assert (span.data, span.start, span.lossy) == (b"", 5, True)
    pour(again, b"more")
    assert (again.total, again.read(5).data) == (9, b"more")
    output = again.settle()
    assert (output.truncated, output.spill_path) == (True, None)


def test_the_spill_file_of_a_cut_off_run_is_found_again(made):
    store = made.store(cap=4)
    store.write(b"0123456789")
    store.close()
    again = reopened(made, store)
    assert again.read_range(0, 100).data == b"0123456789"


MOVER = """
import json, os, sys
from bashd.daemon.output import OutputDirectory, StoreState, StreamStore

folder, state, bound = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
directory = OutputDirectory(folder, os.geteuid(), os.getegid())
store = StreamStore.reopen(StoreState(**state), directory=directory)
os.set_blocking(0, False)
while True:
    try:
        store.splice_from(0, 4096)
    except BlockingIOError:
        continue
    if store.total > bound:
        os.write(1, b"x")
"""


@pytest.mark.slow
def test_no_byte_is_lost_when_the_mover_is_killed(made):
    store = made.store(in_file=True, cap=100, spill=10 * MIB)
    state = store.state()
    feeder = subprocess.Popen(
        ["seq", "-f", "%07g", "1", "200000"], stdout=subprocess.PIPE
    )
    assert feeder.stdout is not None
    with feeder, feeder.stdout as source:
        for bound in (50_000, 400_000):
            _move_until_killed(made, state, source, bound)
        again = StreamStore.reopen(state, directory=made.directory)
        while select.select([source], [], []) and again.splice_from(
            source.fileno(), MIB
        ):
            pass
    lines = b"".join(b"%07d\n" % n for n in range(1, 200_001))
    assert made.only_file() == lines
    assert again.total == len(lines)


def _move_until_killed(made, state, source, bound) -> None:
    argv = [str(made.folder), json.dumps(asdict(state)), str(bound)]
    mover = subprocess.Popen(
        [sys.executable, "-c", MOVER, *argv],
        stdin=source,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    with mover:
        assert mover.stdout is not None
        mover.stdout.read(1)
        mover.kill()
