"""Run on a tiny file system: ``python full_disk_scenarios.py FOLDER SCENARIO``.

The disk is FOLDER itself: one MiB and a few inodes. Every scenario ends with an
assertion error or silently.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import trio

from bashd.daemon.drain import Follower, Stream, drain
from bashd.daemon.output import OutputBudget, StreamStore
from tests.unit.daemon.output_stage import Stage, pour

KIB = 1024
BIG = 1 << 30


def a_live_stream_goes_on_in_memory(disk: Stage) -> None:
    losses: list[int] = []
    store = disk.store(
        in_file=True, cap=1000, spill=BIG, on_lost=lambda: losses.append(1)
    )
    stream = os.urandom(1500 * KIB)
    pour(store, stream)
    assert (store.total, store.tail()) == (len(stream), stream[-1000:])
    assert losses == [1]
    assert disk.files() == []
    output = store.settle()
    assert (output.truncated, output.spill_path) == (True, None)


def finished_output_goes_before_a_live_stream(disk: Stage) -> None:
    budget = OutputBudget(BIG)
    finished = disk.store(in_file=True, cap=1000, spill=BIG, budget=budget)
    pour(finished, b"x" * 600 * KIB)
    finished.settle()
    store = disk.store(in_file=True, cap=1000, spill=BIG, budget=budget)
    stream = os.urandom(800 * KIB)
    pour(store, stream)
    assert finished.read(0).lossy
    assert disk.only_file() == stream
    assert store.settle().spill_path is not None


def a_foreground_spill_is_given_up(disk: Stage) -> None:
    store = disk.store(cap=1000, spill=BIG)
    stream = os.urandom(1500 * KIB)
    for start in range(0, len(stream), 50_000):
        store.write(stream[start : start + 50_000])
    output = store.settle()
    assert (output.bytes, output.spill_path) == (len(stream), None)
    assert store.tail() == stream[-1000:]
    assert disk.files() == []


def without_inodes_a_stream_starts_in_memory(disk: Stage) -> None:
    try:
        for number in range(100):
            (disk.folder / f"filler{number}").touch()
    except OSError:
        pass
    store = disk.store(in_file=True, cap=1000, spill=BIG)
    pour(store, b"hello")
    assert store.settle().text == "hello"


def drain_all(store: StreamStore, stream: bytes) -> None:
    """Have a pipe that *stream* is written to drained into *store*."""
    reader, writer = os.pipe()

    def feed() -> None:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(stream)

    feeder = threading.Thread(target=feed)
    feeder.start()
    trio.run(drain, reader, store)
    feeder.join()


def a_command_on_a_full_disk_never_hangs(disk: Stage) -> None:
    stream = os.urandom(4096 * KIB)
    store = disk.store(in_file=True, cap=1000, spill=BIG)
    drain_all(store, stream)
    assert (store.total, store.tail()) == (len(stream), stream[-1000:])


def make_room_for_a_flood(disk: Stage) -> None:
    """Make the disk large enough for a stream to be taken for a flood first."""
    subprocess.run(["mount", "-o", "remount,size=4m", disk.folder.parent], check=True)


def a_flood_that_meets_a_full_disk_loses_nothing(disk: Stage) -> None:
    stream = os.urandom(12 << 20)
    make_room_for_a_flood(disk)
    store = disk.store(in_file=True, cap=1000, spill=BIG)
    drain_all(store, stream)
    assert (store.total, store.tail()) == (len(stream), stream[-1000:])
    assert disk.files() == []


def a_live_reader_hears_of_all_that_a_full_disk_left(disk: Stage) -> None:
    make_room_for_a_flood(disk)
    whole = 40 << 20
    store = disk.store(in_file=True, cap=50_000, spill=BIG)
    follower = Follower()
    told: list[int] = []
    changed = [trio.Event()]

    def progress() -> None:
        told.append(store.total)
        changed[0].set()
        changed[0] = trio.Event()

    async def follow() -> None:
        offset = 0
        while offset < whole:
            grown = changed[0]
            while (span := store.read_range(offset, 1 << 16)).data:
                offset = span.end
                follower.advance(offset)
            if offset < whole:
                await grown.wait()

    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    stream = Stream(reader, store, on_progress=progress, follower=follower)

    async def go() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                await stream.to_end()

    with subprocess.Popen(["head", "-c", str(whole), "/dev/zero"], stdout=writer):
        os.close(writer)
        trio.run(go)
        stream.close()
        os.close(reader)
    assert (store.total, told[-1]) == (whole, whole)
    assert disk.files() == []


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        a_live_stream_goes_on_in_memory,
        finished_output_goes_before_a_live_stream,
        a_foreground_spill_is_given_up,
        without_inodes_a_stream_starts_in_memory,
        a_command_on_a_full_disk_never_hangs,
        a_flood_that_meets_a_full_disk_loses_nothing,
        a_live_reader_hears_of_all_that_a_full_disk_left,
    )
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[2]](Stage(Path(sys.argv[1])))
