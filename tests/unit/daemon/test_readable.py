"""One wait for many descriptors, on real pipes."""

from __future__ import annotations

import os
from functools import partial

import pytest
import trio
import trio.testing

from bashd.daemon.readable import Readable

pytestmark = pytest.mark.trio


@pytest.fixture
def readable():
    made = Readable()
    yield made
    made.close()


@pytest.fixture
def pipe():
    """Make pipes; (read end, write end)."""
    ends: list[int] = []

    def make() -> tuple[int, int]:
        pair = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        ends.extend(pair)
        return pair

    yield make
    for fd in ends:
        os.close(fd)


async def test_only_who_is_readable_is_called(readable, pipe):
    (quiet, _), (reader, writer) = pipe(), pipe()
    called = []
    readable.add(quiet, partial(called.append, "quiet"))
    readable.add(reader, partial(called.append, "loud"))
    os.write(writer, b"x")
    with trio.fail_after(10):
        await readable.wait()
    assert called == ["loud"]


async def test_what_is_not_read_is_told_again(readable, pipe):
    reader, writer = pipe()
    called = []
    readable.add(reader, partial(called.append, 1))
    os.write(writer, b"x")
    with trio.fail_after(10):
        await readable.wait()
        await readable.wait()
    assert called == [1, 1]


async def test_what_comes_while_it_waits_is_told(readable, pipe):
    reader, writer = pipe()
    called = []
    readable.add(reader, partial(called.append, 1))
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readable.wait)
            await trio.testing.wait_all_tasks_blocked()
            assert not called
            os.write(writer, b"x")
    assert called == [1]


async def test_one_that_is_added_while_it_waits_is_heard(readable, pipe):
    (first, _), (second, writer) = pipe(), pipe()
    called = []
    readable.add(first, partial(called.append, 1))
    os.write(writer, b"x")
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readable.wait)
            await trio.testing.wait_all_tasks_blocked()
            readable.add(second, partial(called.append, 2))
    assert called == [2]


async def test_who_was_removed_by_another_in_the_same_turn_is_not_called(
    readable, pipe
):
    pairs = [pipe(), pipe()]
    called = []

    def remove_all() -> None:
        called.append(1)
        for reader, _ in pairs:
            readable.remove(reader)

    for reader, writer in pairs:
        readable.add(reader, remove_all)
        os.write(writer, b"x")
    with trio.fail_after(10):
        await readable.wait()
    assert called == [1]


async def test_what_a_callback_raises_comes_out(readable, pipe):
    reader, writer = pipe()

    def fail() -> None:
        raise EOFError

    readable.add(reader, fail)
    os.write(writer, b"x")
    with trio.fail_after(10), pytest.raises(EOFError):
        await readable.wait()


async def test_removing_is_harmless_at_any_time(readable, pipe):
    reader, _ = pipe()
    readable.remove(reader)
    readable.add(reader, list)
    readable.remove(reader)
    readable.remove(reader)
    readable.add(reader, list)
    readable.close()
    readable.remove(reader)
