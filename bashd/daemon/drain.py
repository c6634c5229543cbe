"""From a command's pipes into its stores, fairly and without ever being in the way.

Theory of operation. One drain a stream, and it alone reads and closes its
descriptor. It sleeps in epoll until the pipe has bytes, takes a bounded number of
them in the daemon's own thread and yields. A stream that keeps coming (`_Pace`) is
moved by one of a few worker threads instead, a slice at a time and first come, first
served: one splice can block for tens of milliseconds, and the daemon's thread has
other callers to answer. It goes through a second pipe from then on, so that its writer
need not wait for the file (`transfer.Relay`). A stream that falls silent comes back.

Cancelled, a drain ends after the slice that is under way; the store has taken in all
that left the pipe, and the rest is still there. `Drains` waits for the streams of one
command no longer than the grace: a grandchild that holds a pipe cannot hang a call.

A reader that has to see every byte (`Follower`) slows its stream down as any pipe
does: nothing is taken that would push unread bytes out of what the store keeps.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from bashd.daemon.transfer import (
    READ_BYTES,
    End,
    Moved,
    Patience,
    Relay,
    Skim,
    widen,
)

if TYPE_CHECKING:
    from bashd.daemon.output import StreamStore

TURN_BYTES = 256 * 1024
"""Bytes taken before others have their turn: about 100 µs of copying."""

_SLICE_BYTES = 32 * 1024 * 1024
_SLICE = Patience(total_s=0.05, idle_s=0.02)
"""A worker's slice: long enough to make its hand-over cheap, short enough that a
cancelled drain and the next stream in the queue wait no longer than one blink."""

_HEAVY_BYTES = 1024 * 1024
_HEAVY_WINDOW_S = 0.25
"""Faster than 4 MiB/s is heavy. A command that prints a little never gets there."""

_WORKERS = 2
"""Worker threads for all heavy streams. Disks and pipes are the bottleneck, not
threads; two let one stream go on while another waits for the disk."""

_SINK_BYTES_PER_TURN = 1024 * 1024
_SINK_PAUSE_S = 0.1
"""A sink takes at most 10 MiB/s: a writer nobody listens to may go on, slowly."""

_turns: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("turns")
_THREADS = trio.CapacityLimiter(math.inf)
"""Who has a turn has a thread; the daemon's other thread work cannot hold it up."""


class _Pace:
    """Tells streams that keep coming from those that say something."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._bytes = 0

    def is_heavy(self, more_bytes: int) -> bool:
        now_s = trio.current_time()
        if now_s - self._since_s > _HEAVY_WINDOW_S:
            self._since_s, self._bytes = now_s, 0
        self._bytes += more_bytes
        return self._bytes > _HEAVY_BYTES


NewRelay = Callable[[], Awaitable[Relay | None]]
"""Makes the second pipe of a stream; None where there can be none."""


async def plain_relay() -> Relay | None:
    """Return a relay for a stream that need not outlive this process, if there is one."""
    try:
        return Relay()
    except OSError:
        return None


class Follower:
    """A live reader of one stream that must miss nothing the store could keep."""

    def __init__(self) -> None:
        self.offset = 0
        """Where it reads on."""
        self.gone = False
        """Nobody reads any more, so nothing has to wait."""
        self._moved = trio.Event()

    def advance(self, offset: int) -> None:
        """Say that everything before *offset* has been read."""
        self.offset = offset
        self._notify()

    def leave(self) -> None:
        """Stop holding the stream up."""
        self.gone = True
        self._notify()

    async def wait_moved(self) -> None:
        """Wait for the next `advance` or `leave`."""
        await self._moved.wait()

    def _notify(self) -> None:
        moved, self._moved = self._moved, trio.Event()
        moved.set()


async def drain(
    fd: int,
    store: StreamStore,
    *,
    on_bytes: Callable[[bytes], None] | None = None,
    on_progress: Callable[[], None] | None = None,
    turn_bytes: int = TURN_BYTES,
) -> None:
    """Move everything from a pipe into *store* until its end.

    Args:
        fd: Read end; closed exactly once, however this ends.
        store: Where the bytes go.
        on_bytes: Called with each piece as it comes; every byte then passes through
            memory, so it goes with a store that is kept there.
        on_progress: Called after each turn that moved something.
        turn_bytes: Most bytes taken before other work has its turn.
    """
    os.set_blocking(fd, False)
    stream = Stream(
        fd,
        store,
        on_bytes=on_bytes,
        on_progress=on_progress,
        turn_bytes=turn_bytes,
    )
    try:
        await stream.to_end()
    finally:
        stream.close()
        os.close(fd)


class Stream:
    """One pipe on its way into one store; the descriptor stays the caller's.

    Args:
        fd: Read end, non-blocking.
        store: Where the bytes go.
        on_bytes: As for `drain`.
        on_progress: As for `drain`.
        follower: Reads live from the store; the stream waits for it.
        turn_bytes: As for `drain`.
        new_relay: Makes its second pipe when it is needed.
    """

    def __init__(
        self,
        fd: int,
        store: StreamStore,
        *,
        on_bytes: Callable[[bytes], None] | None = None,
        on_progress: Callable[[], None] | None = None,
        follower: Follower | None = None,
        turn_bytes: int = TURN_BYTES,
        new_relay: NewRelay = plain_relay,
    ) -> None:
        self.fd = fd
        self.ended = False
        """The pipe is at its end, and all of it is in the store."""
        self._store = store
        self._on_bytes = on_bytes
        self._on_progress = on_progress
        self._follower = follower
        self._turn_bytes = turn_bytes
        self._new_relay: NewRelay | None = new_relay
        """None once it was asked."""
        self._relay: Relay | None = None
        self._pace = _Pace()

    def close(self) -> None:
        """Close what the stream has of its own."""
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.close()

    def take_turn(self) -> bool:
        """Take what is there, without waiting for anything.

        Returns:
            False when turns will not do: it has to wait for its follower, or keeps
            coming. Then `to_end` goes on.
        """
        room = self._room_now(self._turn_bytes)
        if room <= 0:
            return False
        moved, self.ended = self._take(room)
        return self.ended or not self._pace.is_heavy(moved)

    async def to_end(self) -> None:
        """Take everything until the pipe's end."""
        while True:
            await trio.lowlevel.wait_readable(self.fd)
            moved, ended = self._take(await self._room(self._turn_bytes))
            if ended:
                return
            if self._on_bytes is None and self._pace.is_heavy(moved):
                if await self._while_heavy():
                    return
                self._pace = _Pace()

    def _room_now(self, limit: int) -> int:
        """Return how much the follower has room for, at most *limit*."""
        follower = self._follower
        if follower is None or follower.gone:
            return limit
        return min(self._store.headroom(follower.offset), limit)

    async def _room(self, limit: int) -> int:
        """Wait until the follower has room; return how much, at most *limit*."""
        while (room := self._room_now(limit)) <= 0 and self._follower is not None:
            await self._follower.wait_moved()
        return room

    def _take(self, limit: int) -> tuple[int, bool]:
        """Take what is there, at most *limit* bytes; also say if that was the end."""
        moved = 0
        while moved < limit:
            try:
                count = self._step(limit - moved)
            except BlockingIOError:
                break
            if not count:
                self._tell(moved)
                return moved, True
            moved += count
        self._tell(moved)
        return moved, False

    def _step(self, limit: int) -> int:
        if self._on_bytes is None:
            return self._store.splice_from(self.fd, limit)
        data = os.read(self.fd, min(limit, READ_BYTES))
        self._store.write(data)
        if data:
            self._on_bytes(data)
        return len(data)

    def _tell(self, moved: int) -> None:
        if moved and self._on_progress is not None:
            self._on_progress()

    async def sweep(self) -> bool:
        """Take what lies in the pipe now; True if that was its end."""
        await self._empty_relay()
        # No more than the pipe can hold: a writer may be filling it again.
        left = fcntl.fcntl(self.fd, fcntl.F_GETPIPE_SZ)
        while left > 0:
            moved, ended = self._take(await self._room(left))
            if ended or not moved:
                return ended
            left -= moved
        return False

    async def _while_heavy(self) -> bool:
        """Let workers move the stream until it falls silent; True at its end."""
        widen(self.fd)
        if self._new_relay is not None:
            new_relay, self._new_relay = self._new_relay, None
            self._relay = await new_relay()
        while True:
            room = await self._room(_SLICE_BYTES)
            if room < self._turn_bytes:
                return False  # too little for a hand-over
            async with _heavy_turns():
                move = self._store.begin(room)
                if move is None:
                    return False  # kept in memory, piece by piece
                run = partial(move.run, self.fd, _SLICE)
                if not isinstance(move, Skim):
                    run = partial(run, self._relay)
                moved = Moved(0, End.EMPTY)
                # Shielded: what leaves the pipe has to reach the store.
                with trio.CancelScope(shield=True):
                    moved = await trio.to_thread.run_sync(run, limiter=_THREADS)
                self._store.commit(move, moved)
            self._tell(moved.count)
            await self._empty_relay()
            if moved.end in {End.EOF, End.EMPTY}:
                return moved.end is End.EOF

    async def _empty_relay(self) -> None:
        """Take what the file could not; the store knows where else to put it."""
        relay = self._relay
        while relay is not None and relay.held:
            room = await self._room(relay.held)
            self._tell(relay.give(self._store.splice_from, room))


def _heavy_turns() -> trio.CapacityLimiter:
    try:
        return _turns.get()
    except LookupError:
        limiter = trio.CapacityLimiter(_WORKERS)
        _turns.set(limiter)
        return limiter


class Drains:
    """The drains of one command, with a bounded wait for their end.

    Args:
        nursery: Where they run; must outlive the command.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._stops: list[trio.CancelScope] = []
        self._running = 0
        self._all_ended = trio.Event()
        self._left_open: list[int] = []
        self._abandoned = False

    def start(
        self,
        fd: int,
        store: StreamStore,
        *,
        on_bytes: Callable[[bytes], None] | None = None,
        on_progress: Callable[[], None] | None = None,
        follower: Follower | None = None,
    ) -> None:
        """Start draining; arguments as for `drain`, *fd* is owned from here on.

        *follower* reads live from the store; the stream waits for it.
        """
        os.set_blocking(fd, False)
        self.adopt(
            Stream(
                fd, store, on_bytes=on_bytes, on_progress=on_progress, follower=follower
            )
        )

    def adopt(self, stream: Stream) -> None:
        """Go on draining a stream; its descriptor is owned from here on."""
        self._running += 1
        # Made here: `finish` may come before the drain has had its first turn.
        stop = trio.CancelScope()
        self._stops.append(stop)
        self._nursery.start_soon(self._run, stream.fd, stream, stop)

    async def _run(self, fd: int, stream: Stream, stop: trio.CancelScope) -> None:
        still_open = False
        try:
            with stop:
                await stream.to_end()
            if stop.cancelled_caught:
                still_open = not await stream.sweep()
        finally:
            if still_open and not self._abandoned:
                self._left_open.append(fd)
            else:
                os.close(fd)
            stream.close()
            self._running -= 1
            if not self._running:
                self._all_ended.set()

    async def finish(self, grace_s: float) -> list[int]:
        """Wait for the end of all streams, but no longer than *grace_s* seconds.

        What lay in a pipe when the grace was over is taken in; after that the stores
        change no more.

        Returns:
            The read ends that somebody still writes to, now the caller's: close
            them, and a writer meets SIGPIPE; give them to `sink`, and it goes on.
        """
        if self._running:
            with trio.move_on_after(grace_s):
                await self._all_ended.wait()
            for stop in self._stops:
                stop.cancel()
            try:
                # A slice at most, and as long as a follower needs for a pipeful.
                await self._all_ended.wait()
            except trio.Cancelled:
                self._abandon()
                raise
        left_open, self._left_open = self._left_open, []
        return left_open

    def _abandon(self) -> None:
        """Nobody will take over what is left open: close it now and later."""
        self._abandoned = True
        for fd in self._left_open:
            os.close(fd)
        self._left_open.clear()


async def sink(fd: int) -> None:
    """Let the writers of a settled command go on, slowly, into nowhere.

    A background child that logs to the stdout it inherited would die of SIGPIPE if
    its reader went away with the shell.

    Args:
        fd: Read end; closed at its end or on cancellation.
    """
    try:
        os.set_blocking(fd, False)
        while True:
            await trio.lowlevel.wait_readable(fd)
            if _swallow(fd):
                return
            await trio.sleep(_SINK_PAUSE_S)
    finally:
        os.close(fd)


def _swallow(fd: int) -> bool:
    """Take a turn's worth of bytes; True at the end of the pipe."""
    for _ in range(_SINK_BYTES_PER_TURN // READ_BYTES):
        try:
            if not os.read(fd, READ_BYTES):
                return True
        except BlockingIOError:
            break
    return False
