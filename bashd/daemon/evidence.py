"""What the kernel recorded about a command, and what may be concluded from silence.

`Evidence.run` reads the stream (`bashd.daemon.audit_stream`) into the watches
(`bashd.daemon.watches`). `Evidence.settle` makes sure that the kernel has delivered
what it had when the command ended, which it nearly always has; refusals of processes
that outlive their command still find its watch, for ``bashd explain``.

Silence proves something only if nothing could have been lost: not in the kernel (its
counter), not in our socket, not by a rule of the administrator's, and not by a layer
that a program put on itself, whose refusals nobody records: the seccomp filter logs
that call for us.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from bashd.daemon.audit_delivery import Deliverer
from bashd.daemon.audit_stream import (
    RecordsLostError,
    RecordSocket,
    Status,
    StatusSocket,
    survey,
)
from bashd.daemon.pidfd import host_pid
from bashd.daemon.watches import Watch, Watches

if TYPE_CHECKING:
    from bashd.core.denial import Recorded

RECORDING_ABI: Final = 7
"""Landlock's ABI from which on the kernel records refusals. Source: landlock(7)."""
_TURN: Final = 128
"""Records handled at once: about two milliseconds."""
_CATCH_UP_S: Final = 0.5
"""Longest wait for records that the kernel still holds; it takes about 0.2 ms, and on a
crowded machine what the kernel's thread has to wait for a processor."""
_HOPELESS_S: Final = 0.05
"""The same where records have been lost, so that silence proves nothing any more."""
_ASK_AGAIN_S: Final = 0.0005
_FLOODED_S: Final = 0.05
"""After an overflow nothing is received for so long: whoever floods the stream costs
the daemon a few per cent of a processor and not all of it."""
_LOOK_AGAIN_S: Final = 5.0
"""How soon a daemon notices that audit was turned on; turning it off is announced."""


@dataclass(slots=True, eq=False)
class Trail:
    """One command as the records may speak of it. Made by `Evidence.begin`."""

    watch: Watch
    losses: int
    arrivals: int
    epoch: int
    resumed: bool
    """An earlier daemon started it, and what was recorded in between is lost."""
    complete: bool = False
    """When it settled, the kernel had nothing more to say about it."""
    lost: bool | None = None
    """Whether records were lost while it ran, or had not come when it settled; None
    until then."""


class Evidence:
    """Reads the records for all commands of the daemon; see the module docstring.

    Args:
        landlock_abi: The kernel's; an older one than `RECORDING_ABI` records nothing.
    """

    def __init__(self, landlock_abi: int) -> None:
        self._abi = landlock_abi
        self.on = False
        """Whether refusals are recorded and can be read."""
        self.why_off = "the daemon has not started to read"
        self._watches = Watches()
        self._tells_all = False
        self._records: RecordSocket | None = None
        self._status: StatusSocket | None = None
        self._deliverer: Deliverer | None = None
        self._asking = trio.Lock()
        self._asking_thread = trio.CapacityLimiter(1)
        self._nursery: trio.Nursery | None = None
        self._looked_at = 0.0
        self._flooded = False
        self._losses = self._arrivals = self._epoch = 0
        """How often records were lost, how many came, how often it was another setting
        of the kernel's: what changed while a command ran counts against silence."""
        self._kernel_lost = self._changes = 0

    # -- reading --------------------------------------------------------------------

    async def run(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Read until cancelled; returns at once where records cannot be read."""
        if self._abi < RECORDING_ABI:
            self.why_off = (
                f"Landlock ABI {self._abi} does not record refusals, {RECORDING_ABI}"
                " does (Linux 6.15)"
            )
            task_status.started()
            return
        try:
            self._records = RecordSocket()
            self._status = StatusSocket()
            self._deliverer = await trio.to_thread.run_sync(Deliverer)
        except OSError as error:
            self.why_off = f"the kernel's records cannot be read: {error.strerror}"
            self._close()
            task_status.started()
            return
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._look()
                task_status.started()
                while True:
                    await self._read()
        finally:
            self._nursery = None
            self._close()

    async def _read(self) -> None:
        assert self._records is not None  # noqa: S101 - `run` opened it
        await trio.lowlevel.wait_readable(self._records)
        self._take()
        if self._flooded:
            # Everything that has piled up is dropped with the socket, unread.
            trio.lowlevel.notify_closing(self._records)
            self._records.close()
            await trio.sleep(_FLOODED_S)
            self._records = RecordSocket()
            self._losses += 1
            self._flooded = False
        if self._changes != self._watches.changes or not self.on:
            self._changes = self._watches.changes
            self._epoch += 1
            await self._look()

    def _take(self) -> int:
        """Handle what has arrived, at most one turn of it; returns how many."""
        if self._records is None or self._flooded:
            return 0
        try:
            taken = self._records.take(self._watches.handle, _TURN)
        except RecordsLostError:
            self._losses += 1
            self._flooded = True
            return 0
        self._arrivals += taken
        return taken

    async def _look(self) -> None:
        """Find out whether audit is on and whether it tells all."""
        self._looked_at = trio.current_time()
        try:
            status, excludes = await trio.to_thread.run_sync(survey)
        except PermissionError:
            # CAP_AUDIT_READ alone: what comes is true, what does not may be lost.
            self.on, self._tells_all, self.why_off = True, False, ""
            return
        except OSError as error:
            self.on, self.why_off = False, f"audit does not answer: {error.strerror}"
            return
        if status.enabled != self.on:
            self._epoch += 1
        self._note_lost(status)
        self.on, self._tells_all = status.enabled, not excludes
        self.why_off = "" if self.on else "audit is off (audit_enabled is 0)"

    def _note_lost(self, status: Status) -> None:
        if status.lost != self._kernel_lost:
            self._kernel_lost = status.lost
            self._losses += 1

    def _close(self) -> None:
        self.on = False
        for one in (self._records, self._status):
            if one is not None and one.fileno() >= 0:
                trio.lowlevel.notify_closing(one)
                one.close()
        self._records = self._status = None
        if self._deliverer is not None:
            self._deliverer.close()

    # -- commands -------------------------------------------------------------------

    def begin(
        self, pidfd: int, *, covered: bool, resumed: bool = False
    ) -> Trail | None:
        """Watch a command from before it starts; None while records are not read.

        Args:
            pidfd: Of its shell.
            covered: Its cell's filter logs layers that programs put on themselves.
            resumed: See `Trail.resumed`.
        """
        if not self.on:
            self._look_soon()
            return None
        watch = self._watches.add(host_pid(pidfd), covered=covered)
        return Trail(watch, self._losses, self._arrivals, self._epoch, resumed)

    def _look_soon(self) -> None:
        if self._nursery is None:
            return
        now = trio.current_time()
        if now - self._looked_at > _LOOK_AGAIN_S:
            self._looked_at = now
            self._nursery.start_soon(self._look)

    async def settle(self, trail: Trail) -> Recorded:
        """Say what is recorded about a command that has ended."""
        idle = self._is_idle()
        self._take()
        # Mostly nothing has come and nothing will: then nothing can be lost either.
        quiet = idle is True and self._arrivals == trail.arrivals
        caught_up = quiet or await self._catch_up(trail)
        trail.complete = caught_up and self._tells_all
        # What the kernel still holds may be a refusal; it then shows in `explain`.
        trail.lost = not caught_up or self._has_lost(trail)
        return self.recorded(trail)

    def recorded(self, trail: Trail) -> Recorded:
        """Return what is recorded so far about a command that has settled."""
        lost = self._has_lost(trail) if trail.lost is None else trail.lost
        return trail.watch.recorded(complete=trail.complete, lost=lost)

    def _has_lost(self, trail: Trail) -> bool:
        return (
            trail.resumed or self._losses != trail.losses or self._epoch != trail.epoch
        )

    async def _catch_up(self, trail: Trail) -> bool:
        """Wait until the kernel has delivered what it holds; False when it has not."""
        hopeless_at = trio.current_time() + _HOPELESS_S
        with trio.move_on_after(_CATCH_UP_S):
            async with self._asking:
                while self._status is not None:
                    idle = self._is_idle()
                    waiting = await self._ask(self._status)
                    untold = waiting is None
                    while self._take() == _TURN:
                        await trio.lowlevel.checkpoint()
                    if idle is not False and (waiting == 0 or (idle and untold)):
                        return True
                    hopeless = untold or self._has_lost(trail)
                    if hopeless and trio.current_time() > hopeless_at:
                        return False
                    await trio.sleep(_ASK_AGAIN_S)
        return False

    def _is_idle(self) -> bool | None:
        return None if self._deliverer is None else self._deliverer.is_idle()

    async def _ask(self, status: StatusSocket) -> int | None:
        """Return how many records the kernel still holds; None where it does not tell.

        Whoever asks while it holds more than its limit, the kernel makes wait, for a
        minute at worst, and no signal helps: so not the daemon, and one thread at most.
        Source: kernel/audit.c, audit_receive().
        """
        try:
            number = await trio.to_thread.run_sync(
                status.ask, abandon_on_cancel=True, limiter=self._asking_thread
            )
            while (answer := status.answer(number)) is None:
                await trio.lowlevel.wait_readable(status)
        except OSError:
            return None
        self._note_lost(answer)
        return answer.waiting
