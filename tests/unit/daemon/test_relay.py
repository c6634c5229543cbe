"""The second pipe of a stream, and what a keeper could do with its copy of it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING

import pytest
import trio

from bashd.daemon.drain import Stream
from bashd.daemon.run import take_older
from bashd.daemon.transfer import WIDE_BYTES, Relay
from tests.unit.daemon.test_output_drain import open_count, writing

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.trio


async def test_whoever_reads_from_a_second_pipe_takes_only_what_he_reads(made):
    store, stolen, over = made.store(in_file=True, spill=1 << 40), [], threading.Event()

    async def watched() -> Relay:
        relay = Relay()
        copy = os.dup(relay.read_fd)

        def steal() -> None:
            while not over.is_set():
                with contextlib.suppress(BlockingIOError):
                    stolen.append(len(os.read(copy, 100)))
            os.close(copy)

        threading.Thread(target=steal).start()
        return relay

    whole = 200_000_000
    with writing(f"head -c {whole} /dev/zero") as (reader, _):
        os.set_blocking(reader, False)
        stream = Stream(reader, store, new_relay=watched)
        try:
            with trio.fail_after(60):
                await stream.to_end()
        finally:
            over.set()
            stream.close()
            os.close(reader)
    assert stolen, "the test took nothing"
    assert store.total + sum(stolen) == whole


async def test_a_relay_gives_back_both_its_ends():
    before = open_count()
    relay = Relay()
    assert open_count() == before + 2
    relay.close()
    assert open_count() == before


def a_folder() -> int:
    return os.open("/", os.O_RDONLY)


def an_endless_file() -> int:
    return os.open("/dev/zero", os.O_RDONLY)


def an_empty_pipe() -> int:
    reader, writer = os.pipe()
    os.dup2(writer, KEPT_FD)
    os.close(writer)
    return reader


KEPT_FD = 300
"""A write end that stays open."""


@pytest.mark.parametrize("open_it", [a_folder, an_endless_file, an_empty_pipe])
@pytest.mark.parametrize("in_file", [False, True])
async def test_what_is_no_pipe_of_a_stream_holds_nobody_up(
    made, open_it: Callable[[], int], in_file: bool
):
    before = open_count()
    store = made.store(in_file=in_file)
    take_older({1: open_it()}, store, made.store(), None)
    if open_it is an_empty_pipe:
        os.close(KEPT_FD)
    assert store.total == 0
    assert open_count() == before


async def test_a_pipe_that_is_being_filled_is_taken_once(made):
    store, told = made.store(in_file=True, spill=1 << 40), []
    with writing("exec cat /dev/zero") as (reader, _):
        fd = os.dup(reader)
        select.select([fd], [], [])
        take_older({1: fd}, store, made.store(), lambda: told.append(1))
        os.close(reader)
    assert 0 < store.total <= WIDE_BYTES
    assert told
