"""One command in one spare: request, output, deadline, kill ladder, settlement.

`drive` returns when the shell has exited and its pipes are drained, or the grace for
draining is over: a grandchild that holds a pipe never hangs a call. The first cause
that stops a command wins (`Stop`).
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from bashd.daemon import tree
from bashd.daemon.afterwards import afterwards
from bashd.daemon.cell import Spare
from bashd.daemon.drain import (
    Drains,
    Follower,
    NewRelay,
    Stream,
    plain_relay,
    sink,
)
from bashd.daemon.output import StreamStore
from bashd.daemon.pipes import Pipes
from bashd.daemon.terminal import Terminal

TIMEOUT = "timeout"
ABORT = "abort"
KILL = "kill"
_LAST_LOOK_S = 0.05
"""Least time for the pipes after a kill ladder; what lies in them is taken anyway."""
_CHILD_KILLED = 128 + signal.SIGKILL
"""Exit status of a shell whose last command was killed."""
_START_S = 0.1
"""A start takes some milliseconds. SIGCONT does nothing to one that is only slow."""
_START_LOOK_S = 0.002
_START_AGAIN_S = 1.0


Followers = tuple[Follower | None, Follower | None]
"""Live readers of stdout and stderr, for which the streams wait."""


class Stop:
    """Why and how hard a command is to be stopped; the first cause wins."""

    def __init__(self) -> None:
        self.cause: str | None = None
        self.force = False
        self._wake: trio.Event | None = None
        self._forced = trio.Event()

    def request(self, cause: str, *, force: bool = False) -> None:
        """Ask for the end. A later call can only add *force*."""
        if self.cause is None:
            self.cause = cause
        if self._wake is not None:
            self._wake.set()
        if force:
            self.force = True
            self._forced.set()

    def bind(self, wake: trio.Event) -> None:
        """Set *wake* when the stop is requested (now, if it has been)."""
        self._wake = wake
        if self.cause is not None:
            wake.set()

    async def wait_forced(self) -> None:
        """Wait until the end is to come without grace."""
        await self._forced.wait()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    exit_code: int | None
    signal: str | None
    cause: str | None
    wall_ms: int
    cpu_ms: int
    max_rss_bytes: int
    """Most memory of the whole tree where a cgroup counts it, else of the largest
    process that was waited for."""
    oom_killed: bool
    """The kernel ended a process of it for want of memory within its limit."""
    lost: bool
    """The cell broke under the command: no exit status exists."""


def lost(cause: str | None = None, wall_ms: int = 0) -> Ended:
    """Return the end of a command of which nothing more is known."""
    return Ended(None, None, cause, wall_ms, 0, 0, oom_killed=False, lost=True)


def signal_name(number: int) -> str:
    """Return ``SIGTERM`` for 15, ``SIGRTMIN+3`` and the like for real-time ones."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


async def drive(
    spare: Spare,
    stdout: StreamStore,
    stderr: StreamStore,
    *,
    run_id: str,
    timeout_s: float | None,
    grace_s: float,
    stop: Stop,
    on_progress: Callable[[], None] | None = None,
    followers: Followers = (None, None),
    terminal: Terminal | None = None,
) -> Ended:
    """See a started command through to its settlement.

    The caller has sent the request. Takes over the spare's pipes, and releases the
    spare (at once, or after the kill ladder has gone through its last rung).
    *on_progress* is called whenever a stream has grown; *followers* read live; what
    the command prints on its *terminal* counts as stdout.
    """
    began = trio.current_time()
    deadline = math.inf if timeout_s is None else began + timeout_s
    oom_kills_before = spare.cell.oom_kills()
    stop.bind(spare.wake)
    take_older(spare.second_pipes, stdout, stderr, on_progress)
    out_fd, spare.stdout_fd = spare.stdout_fd, -1
    err_fd, spare.stderr_fd = spare.stderr_fd, -1
    marker = spare.marker = tree.MARKER + run_id.encode()
    stream = partial(Stream, on_progress=on_progress)
    pipes = Pipes(
        spare,
        (
            stream(out_fd, stdout, follower=followers[0], new_relay=_relay(spare, 1)),
            stream(err_fd, stderr, follower=followers[1], new_relay=_relay(spare, 2)),
        ),
    )
    ladder_ends = None
    if terminal is not None or not await _is_soon_over(spare, pipes, deadline):
        async with trio.open_nursery() as nursery:
            drains = Drains(nursery)
            for unfinished in pipes.hand_over():
                drains.adopt(unfinished)
            if terminal is not None:
                nursery.start_soon(
                    terminal.serve, spare, stdout, on_progress, followers[0]
                )
            ladder_ends = await _wait_end(
                spare, deadline, grace_s, stop=stop, marker=marker
            )
            bound = grace_s
            if ladder_ends is not None:
                bound = max(ladder_ends - trio.current_time(), _LAST_LOOK_S)
            for fd in await drains.finish(bound):
                # A background child still writes there; it must not die of SIGPIPE.
                if not spare.cell.finish_later(partial(sink, fd)):
                    os.close(fd)
            if terminal is not None:
                await terminal.finish(bound)
    spare.came_to = spare.outcome()
    ended = _ended(spare, stop, began, oom_kills_before)
    _let_go(spare, marker, ladder_ends)
    return ended


def _relay(spare: Spare, stream: int) -> NewRelay:
    """Say how a stream gets a second pipe: what a task prints is to outlive us."""
    return partial(spare.cell.relay, spare, stream) if spare.is_task else plain_relay


def take_older(
    second_pipes: dict[int, int],
    stdout: StreamStore,
    stderr: StreamStore,
    on_progress: Callable[[], None] | None,
) -> None:
    """Take what an earlier daemon had not come to; nobody adds to it any more.

    Args:
        second_pipes: Of a task's streams, 1 and 2; closed and taken out.
        stdout: Where the first goes.
        stderr: Where the second goes.
        on_progress: Called after each.
    """
    while second_pipes:
        number, fd = second_pipes.popitem()
        store = stdout if number == 1 else stderr
        try:
            _take_rest(fd, store)
        finally:
            os.close(fd)
        if on_progress is not None:
            on_progress()


def _take_rest(fd: int, store: StreamStore) -> None:
    """Take what is in a pipe, and no more than it can hold."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return  # it is what a cell's keeper has sent, and might be anything
    os.set_blocking(fd, False)
    left = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    # Empty and still open: whoever wrote to it has not quite gone.
    with contextlib.suppress(BlockingIOError):
        while left > 0 and (count := store.splice_from(fd, left)):
            left -= count


async def _is_soon_over(spare: Spare, pipes: Pipes, deadline: float) -> bool:
    """Wait a moment for the command's end; False where there is more to be done.

    Neither nursery nor task is needed for this, and most commands are over by then.
    """
    try:
        soon = min(deadline, trio.current_time() + _START_S)
        with trio.CancelScope(deadline=soon):
            await spare.wake.wait()
    except BaseException:
        pipes.close()
        raise
    if spare.exited.is_set() and pipes.ended:
        return True
    if not spare.exited.is_set():
        # What it was woken for may have been a stream.
        spare.wake = trio.Event()
    return False


async def _wait_end(
    spare: Spare,
    deadline: float,
    grace_s: float,
    *,
    stop: Stop,
    marker: bytes,
) -> float | None:
    """Wait until the shell has exited; returns when the ladder ends, if it began."""
    stop.bind(spare.wake)
    await _wait_started(spare, deadline)
    if not spare.wake.is_set():
        with trio.move_on_at(deadline):
            await spare.wake.wait()
    if spare.exited.is_set():
        return None
    if stop.cause is None:
        stop.request(TIMEOUT)
    cell = spare.cell
    ladder_ends = trio.current_time() + grace_s
    if not stop.force:
        await _let_start(spare)
        cell.signal(spare, signal.SIGTERM)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_forced, stop, nursery.cancel_scope)
            with trio.move_on_after(grace_s):
                await spare.exited.wait()
            nursery.cancel_scope.cancel()
    if not spare.exited.is_set():
        cell.kill_tree(spare, marker)
        ladder_ends = trio.current_time()
        await spare.exited.wait()
    return ladder_ends


async def _let_start(spare: Spare) -> None:
    """Wait until a spare that has its request is bash, so that SIGTERM reaches it.

    Before exec it catches every signal and does nothing; a TERM sent to it then would
    be lost, and the command would run on until the grace is over. A stop this early is
    rare and a start short, so looking every two milliseconds will do.
    """
    with trio.move_on_after(_START_AGAIN_S):
        while not (spare.exited.is_set() or spare.has_started()):  # noqa: ASYNC110
            await trio.sleep(_START_LOOK_S)


async def _wait_started(spare: Spare, deadline: float) -> None:
    """Wait until bash runs, or a moment at first: almost always it does by then.

    A spare ignores what other commands of its session may send it, but for SIGSTOP,
    which none can. One that was stopped is continued, as often as it takes.
    """
    patience_s = _START_S
    while not spare.wake.is_set() and trio.current_time() < deadline:
        with trio.move_on_at(min(deadline, trio.current_time() + patience_s)):
            await spare.wake.wait()
        if spare.wake.is_set() or spare.has_started():
            return
        spare.cell.signal(spare, signal.SIGCONT)
        patience_s = min(2 * patience_s, _START_AGAIN_S)


async def _cancel_when_forced(stop: Stop, scope: trio.CancelScope) -> None:
    await stop.wait_forced()
    scope.cancel()


def _ended(spare: Spare, stop: Stop, began: float, oom_kills_before: int) -> Ended:
    wall_ms = round((trio.current_time() - began) * 1000)
    report = spare.exit
    if report is None:
        return lost(stop.cause, wall_ms)
    status = report.status
    number = status & 0x7F
    cpu_us, max_rss_bytes = report.cpu_us, report.max_rss_kib * 1024
    # Counted for the cell as a whole, it is this command's if it shows the mark.
    oom_killed = (
        (number == signal.SIGKILL or status >> 8 == _CHILD_KILLED)
        and stop.cause is None
        and spare.cell.oom_kills() > oom_kills_before
    )
    if spare.group is not None:
        cpu_us = max(cpu_us, spare.group.cpu_us())
        max_rss_bytes = spare.group.peak_bytes() or max_rss_bytes
        oom_killed = oom_killed or spare.group.oom_kills() > 0
    return Ended(
        exit_code=None if number else status >> 8,
        signal=signal_name(number) if number else None,
        cause=stop.cause,
        wall_ms=wall_ms,
        cpu_ms=cpu_us // 1000,
        max_rss_bytes=max_rss_bytes,
        oom_killed=oom_killed,
        lost=False,
    )


def _let_go(spare: Spare, marker: bytes, ladder_ends: float | None) -> None:
    """Release the spare; after a stop only when its whole tree is gone.

    Descendants that trap SIGTERM get their grace even when the shell died at once;
    until then the shell's pid stays taken. The result does not wait for that.

    A task's end is acknowledged when its result is on disk: if the daemon dies before,
    its keeper still has the status.
    """
    if ladder_ends is None and not spare.is_task:
        # After the answer: waking the launcher costs more than all of the settlement.
        afterwards(spare.cell.release, spare)
        return

    async def finish() -> None:
        try:
            if ladder_ends is not None:
                await trio.sleep(max(ladder_ends - trio.current_time(), 0))
                spare.cell.kill_tree(spare, marker)
            if spare.is_task:
                await spare.recorded.wait()
        finally:
            # When the cell ends first, too: the descriptors are ours.
            spare.cell.release(spare)

    if not spare.cell.finish_later(finish):
        spare.cell.release(spare)
