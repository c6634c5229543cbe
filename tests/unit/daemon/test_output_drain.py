"""Drains on real pipes and real writers."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from bashd.daemon.drain import Drains, Follower, drain, sink

pytestmark = pytest.mark.trio

MIB = 1 << 20


@contextlib.contextmanager
def writing(command: str):
    """Run a shell command; yield the read end of its stdout and the process."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        ["bash", "-c", command], stdout=writer, stdin=subprocess.DEVNULL
    )
    os.close(writer)
    try:
        yield reader, process
    finally:
        process.kill()
        process.wait()


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def open_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition) -> None:
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - totals make no events
            await trio.sleep(0.001)


@pytest.mark.parametrize("in_file", [False, True])
async def test_a_drained_pipe_is_closed_and_its_bytes_are_in_the_store(made, in_file):
    store = made.store(in_file=in_file, cap=1000)
    with writing("printf one; printf two") as (reader, _):
        await drain(reader, store)
        assert not is_open(reader)
    assert store.settle().text == "onetwo"


async def test_live_pieces_are_the_stream(made):
    store, pieces = made.store(cap=1000), []
    with writing("seq 1 20000") as (reader, _):
        await drain(reader, store, on_bytes=pieces.append)
    expected = "".join(f"{n}\n" for n in range(1, 20001)).encode()
    assert b"".join(pieces) == expected
    assert made.store().total == 0
    assert store.total == len(expected)


async def test_progress_is_told_for_a_stream_in_a_file(made):
    store, totals = made.store(in_file=True), []
    with writing("echo hello") as (reader, _):
        await drain(reader, store, on_progress=lambda: totals.append(store.total))
    assert totals[-1] == 6


@pytest.mark.slow
@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("spill", [64 * MIB, MIB])
async def test_a_heavy_stream_arrives_exactly(made, spill, in_file):
    store = made.store(in_file=in_file, cap=64_000, spill=spill)
    with writing("seq 1 2000000") as (reader, _):
        await drain(reader, store)
    stream = "".join(f"{n}\n" for n in range(1, 2_000_001)).encode()
    output = store.settle()
    assert (output.bytes, output.text) == (len(stream), stream[-64_000:].decode())
    if spill < len(stream):
        assert output.spill_path is None
        assert bool(made.files()) == in_file
    else:
        digest = hashlib.sha256(made.only_file()).hexdigest()
        assert digest == hashlib.sha256(stream).hexdigest()


@pytest.mark.slow
async def test_cancelled_under_a_flood_no_byte_is_taken_and_lost(made):
    store = made.store(in_file=True, cap=1000, spill=1 << 40)
    with writing("exec seq 1 100000000") as (reader, process):
        rest = os.dup(reader)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain, reader, store)
            await until(lambda: store.total >= 3 * MIB)
            nursery.cancel_scope.cancel()
        assert not is_open(reader)
        process.kill()
        process.wait()
        os.set_blocking(rest, True)
        with os.fdopen(rest, "rb") as pipe:
            following = pipe.read()
    moved = made.only_file()
    assert len(moved) == store.total
    lines = (moved + following).split(b"\n")[:-1]
    assert lines == [b"%d" % n for n in range(1, len(lines) + 1)]


async def test_floods_do_not_hold_up_a_stream_that_says_one_line(made):
    quiet = made.store("stderr", in_file=True)
    with contextlib.ExitStack() as floods:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                reader, _ = floods.enter_context(writing("exec yes"))
                store = made.store(in_file=True, cap=1000, spill=MIB)
                nursery.start_soon(drain, reader, store)
            with writing("echo here") as (reader, _), trio.fail_after(5):
                await drain(reader, quiet)
            nursery.cancel_scope.cancel()
    assert quiet.settle().text == "here\n"


async def test_every_one_of_many_floods_makes_progress(made):
    stores = [made.store(in_file=True, cap=1000, spill=MIB) for _ in range(8)]
    with contextlib.ExitStack() as floods:
        async with trio.open_nursery() as nursery:
            for store in stores:
                reader, _ = floods.enter_context(writing("exec yes"))
                nursery.start_soon(drain, reader, store)
            await until(lambda: all(store.total > 10 * MIB for store in stores))
            nursery.cancel_scope.cancel()


class CountWakeUps(trio.abc.Instrument):
    def __init__(self):
        self.count = 0

    def after_io_wait(self, timeout):
        self.count += 1


async def test_a_silent_stream_wakes_nobody(made):
    instrument = CountWakeUps()
    reader, writer = os.pipe()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain, reader, made.store(in_file=True))
        os.write(writer, b"once")
        await trio.testing.wait_all_tasks_blocked(0.02)
        trio.lowlevel.add_instrument(instrument)
        await trio.sleep(0.15)
        trio.lowlevel.remove_instrument(instrument)
        os.close(writer)
    assert instrument.count <= 3


async def test_a_writer_whose_reader_stopped_meets_sigpipe(made):
    store = made.store(in_file=True, cap=1000, spill=MIB)
    with writing("exec yes") as (reader, process):
        with trio.move_on_after(0.05):
            await drain(reader, store)
        assert await trio.to_thread.run_sync(process.wait) == -signal.SIGPIPE


async def test_finish_returns_at_once_when_all_streams_have_ended(made):
    store = made.store()
    with writing("echo done") as (reader, process):
        async with trio.open_nursery() as nursery:
            drains = Drains(nursery)
            drains.start(reader, store)
            await trio.to_thread.run_sync(process.wait)
            with trio.fail_after(5):
                assert await drains.finish(60) == []
    assert not is_open(reader)
    assert store.settle().text == "done\n"


async def test_finish_without_streams_does_not_wait():
    async with trio.open_nursery() as nursery:
        assert await Drains(nursery).finish(60) == []


async def test_a_grandchild_that_holds_the_pipe_cannot_hang_the_call(made):
    store = made.store()
    with writing("sleep 60 & echo $!") as (reader, process):
        await trio.to_thread.run_sync(process.wait)
        async with trio.open_nursery() as nursery:
            drains = Drains(nursery)
            drains.start(reader, store)
            with trio.fail_after(5):
                left = await drains.finish(0.05)
        sleeper = int(store.settle().text)
        os.kill(sleeper, 0)
        assert left == [reader]
        assert is_open(reader)
        os.close(reader)
        os.kill(sleeper, signal.SIGKILL)


async def test_bytes_still_in_the_pipe_are_swept_when_the_grace_is_over(made):
    stores = [made.store(), made.store("stderr", in_file=True)]
    async with trio.open_nursery() as nursery:
        drains = Drains(nursery)
        writers = []
        for store in stores:
            reader, writer = os.pipe()
            writers.append(writer)
            os.write(writer, b"last words")
            drains.start(reader, store)
        left = await drains.finish(0)
    assert [store.settle().text for store in stores] == ["last words"] * 2
    for fd in left + writers:
        os.close(fd)


async def test_a_flooding_survivor_cannot_stretch_the_sweep(made):
    store = made.store(in_file=True, cap=1000, spill=MIB)
    with writing("exec yes") as (reader, _):
        async with trio.open_nursery() as nursery:
            drains = Drains(nursery)
            drains.start(reader, store)
            with trio.fail_after(5):
                (left,) = await drains.finish(0.05)
        total = store.total
        await trio.sleep(0.02)
        assert store.total == total
        os.close(left)


async def follow(store, follower, seen, ended) -> None:
    """Read a stream in small pieces, slower than it comes."""
    while True:
        over = ended.is_set()
        span = store.read_range(follower.offset, 10_000)
        assert span.start == follower.offset
        seen += span.data
        follower.advance(span.end)
        if over and not span.data:
            return
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("spill", [100_000, 3 * MIB])
async def test_a_follower_misses_no_byte_of_a_stream_that_outgrows_its_file(
    made, in_file, spill
):
    store = made.store(in_file=in_file, cap=20_000, spill=spill)
    seen, ended, follower = bytearray(), trio.Event(), Follower()
    with writing("seq 1 600000") as (reader, process):
        async with trio.open_nursery() as nursery:
            drains = Drains(nursery)
            drains.start(reader, store, follower=follower)
            nursery.start_soon(follow, store, follower, seen, ended)
            await trio.to_thread.run_sync(process.wait)
            assert await drains.finish(0) == []
            ended.set()
    assert seen == "".join(f"{n}\n" for n in range(1, 600_001)).encode()
    assert store.settle().spill_path is None


async def test_a_follower_that_left_holds_nothing_up(made):
    store, follower = made.store(cap=100, spill=100), Follower()
    with writing("seq 1 10000") as (reader, _):
        async with trio.open_nursery() as nursery:
            drains = Drains(nursery)
            drains.start(reader, store, follower=follower)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert store.total == 100
            follower.leave()
            with trio.fail_after(5):
                assert await drains.finish(60) == []
    assert store.settle().text.endswith("\n10000\n")


async def test_a_finish_that_is_cancelled_leaves_no_descriptor(made):
    before = open_count()
    reader, writer = os.pipe()
    os.write(writer, b"x" * 1000)
    async with trio.open_nursery() as nursery:
        drains = Drains(nursery)
        drains.start(reader, made.store(cap=10, spill=10), follower=Follower())
        with trio.move_on_after(0.02) as scope:
            await drains.finish(0)
        assert scope.cancelled_caught
        nursery.cancel_scope.cancel()
    os.close(writer)
    assert open_count() == before


async def test_cancelled_drains_leave_no_descriptor(made):
    before = open_count()
    _, writer = pipe = os.pipe()
    async with trio.open_nursery() as nursery:
        drains = Drains(nursery)
        drains.start(pipe[0], made.store())
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    os.close(writer)
    assert open_count() == before


async def test_a_sunk_writer_goes_on_and_ends_with_its_sink():
    with writing("exec yes") as (reader, process):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sink, reader)
            await trio.sleep(0.15)
            assert process.poll() is None
            nursery.cancel_scope.cancel()
        assert not is_open(reader)
        assert await trio.to_thread.run_sync(process.wait) == -signal.SIGPIPE


async def test_a_sink_ends_with_its_writers():
    with writing("echo unheard") as (reader, _):
        with trio.fail_after(5):
            await sink(reader)
        assert not is_open(reader)


async def test_a_blocking_pipe_end_does_not_block_the_loop(made):
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETFL, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain, reader, made.store(cap=100))
        threading.Timer(0.02, os.close, [writer]).start()
