"""A cell whose zygote is killed and stopped at any moment goes on as if nothing was.

What a cell's own commands may do to the processes they share it with, done from outside
and over and over, so that it hits the moments that matter: a zygote that starts, one
that forks, one with orders it has not read.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults.load import names_left
from tests.support.callers import client
from tests.support.enclosure import describe
from tests.support.launchers import is_zygote
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.support.daemons import RunningDaemon

COMMANDS = 60
LULL_S = 0.2
"""Longest time between two blows; a zygote is ready after some 30 ms."""
NAMED_S = 0.02
"""A spare gives itself a name. Until then it looks like its zygote, and it may be a
command by the time it is hit."""
SLOWEST_S = 10
"""A call gives a cell up that brings no process for 15 s; none may come near that."""


def zygotes(daemon: RunningDaemon) -> list[int]:
    """Return the cells' zygotes, and newborn spares."""
    return [pid for pid in daemon.enclosure.pids() if is_zygote(pid)]


@contextlib.contextmanager
def attacked(
    daemon: RunningDaemon, numbers: tuple[int, ...], seed: int
) -> Generator[None]:
    """Signal the cells' own processes at random moments for a while."""
    moments, over = random.Random(seed), threading.Event()

    def attack() -> None:
        while not over.wait(moments.uniform(0, LULL_S)):
            before = zygotes(daemon)
            time.sleep(NAMED_S)
            for pid in sorted({*before} & {*zygotes(daemon)}):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, moments.choice(numbers))

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param((signal.SIGKILL,), id="killed"),
        pytest.param((signal.SIGSTOP,), id="stopped"),
        pytest.param((signal.SIGKILL, signal.SIGSTOP), id="both"),
    ],
)
def test_no_call_waits_for_a_zygote_that_is_lost(
    daemon_matrix: RunningDaemon, numbers: tuple[int, ...]
):
    daemon = daemon_matrix
    with client(daemon, cwd=daemon.make_workspace()) as caller:
        kept = caller.start("sleep 600")
        caller.run("true")
        slowest = 0.0
        with attacked(daemon, numbers, seed=len(numbers)):
            for number in range(COMMANDS):
                began = time.monotonic()
                task = caller.start(f"echo {number}; exit {number % 7}")
                assert caller.wait(task.task_id).exit_code == number % 7
                read = caller.read_output(task.task_id)
                assert read is not None
                assert read.delta == f"{number}\n"
                slowest = max(slowest, time.monotonic() - began)
        assert slowest < SLOWEST_S
        info = caller.get(kept.task_id)
        assert info is not None
        assert str(info.status) == "running", "the cell was given up"
        caller.kill(kept.task_id)
        caller.wait(kept.task_id)
        assert caller.run("echo fine").stdout.text == "fine\n"
    eventually(
        lambda: not names_left(daemon.enclosure.pids(), describe), "the end of all"
    )
