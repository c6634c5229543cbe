"""The first moments of a command's pipes, on real pipes and stores."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from bashd.daemon.drain import Follower, Stream
from bashd.daemon.pipes import Pipes
from bashd.daemon.readable import Readable

pytestmark = pytest.mark.trio

MIB = 1 << 20


@pytest.fixture
async def spare(nursery):
    """What `Pipes` needs of a command: its event, and a cell whose pump runs."""
    readable = Readable()

    async def pump() -> None:
        while True:
            await readable.wait()

    nursery.start_soon(pump)
    cell = SimpleNamespace(watch=readable.add, unwatch=readable.remove)
    yield SimpleNamespace(cell=cell, wake=trio.Event())
    readable.close()


def pipe() -> tuple[int, int]:
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


async def until(condition) -> None:
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - the end of a stream makes no event
            await trio.sleep(0.001)


async def test_to_the_end_without_a_task(made, spare):
    (out, out_end), (err, err_end) = pipe(), pipe()
    stdout, stderr = made.store(cap=1000), made.store(cap=1000)
    pipes = Pipes(spare, (Stream(out, stdout), Stream(err, stderr)))
    os.write(out_end, b"one")
    await until(lambda: stdout.total == 3)
    os.write(out_end, b"two")
    os.close(out_end)
    await until(lambda: not is_open(out))
    assert not pipes.ended
    os.close(err_end)
    await until(lambda: pipes.ended)
    assert not is_open(err)
    assert pipes.hand_over() == []
    assert not spare.wake.is_set()
    assert (stdout.settle().text, stderr.settle().text) == ("onetwo", "")


async def test_a_stream_that_keeps_coming_is_handed_over(made, spare):
    reader, writer = pipe()
    store = made.store(cap=1000, in_file=True)
    pipes = Pipes(spare, (Stream(reader, store),))
    written = 0
    with trio.fail_after(10):
        while not spare.wake.is_set():
            try:
                written += os.write(writer, bytes(65536))
            except BlockingIOError:
                await trio.lowlevel.wait_writable(writer)
            await trio.lowlevel.checkpoint()
    assert written > MIB
    (stream,) = pipes.hand_over()
    os.close(writer)
    with trio.fail_after(10):
        await stream.to_end()
    os.close(reader)
    assert store.total == written


async def test_a_stream_whose_reader_is_behind_is_handed_over(made, spare):
    reader, writer = pipe()
    store, follower = made.store(cap=10, spill=0), Follower()
    pipes = Pipes(spare, (Stream(reader, store, follower=follower),))
    os.write(writer, b"x" * 25)
    await until(spare.wake.is_set)
    # No more was taken than it can still be shown.
    assert store.read(follower.offset).data == b"x" * 10
    assert not store.read(follower.offset).lossy
    pipes.close()
    os.close(writer)


async def test_what_cannot_be_stored_is_left_to_a_task_and_hurts_no_pump(made, spare):
    reader, writer = pipe()
    store = made.store(cap=1000)
    store.splice_from = None
    pipes = Pipes(spare, (Stream(reader, store),))
    os.write(writer, b"x")
    await until(spare.wake.is_set)
    (stream,) = pipes.hand_over()
    with pytest.raises(TypeError):
        await stream.to_end()
    os.close(reader)
    os.close(writer)


async def test_closed_early_nothing_stays_open_or_watched(made, spare):
    reader, writer = pipe()
    store = made.store(cap=1000)
    pipes = Pipes(spare, (Stream(reader, store),))
    pipes.close()
    assert not is_open(reader)
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")
    os.close(writer)
    await trio.testing.wait_all_tasks_blocked()
    assert store.total == 0
