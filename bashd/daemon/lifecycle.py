"""From "accepts" to "gone": readiness, idle exit, watchdog, reload and the clean stop.

Shutdown order, and why it is this one:

1. The service manager is told (STOPPING=1), so that it does not restart us.
2. Accepting ends and the socket's name goes: new clients find nobody, rather than
   somebody who is about to leave. The right to the path stays ours.
3. The service ends every task and waits for it, up to a bound; connections live on, so
   that clients get the results of what was cut off.
4. What is open then is withdrawn, and clients get a moment to read their answers;
   then connections and service are cancelled.
5. The right to the path goes last: the next daemon begins when nothing of this one is
   left.

A second SIGTERM or SIGINT skips the waiting of 3 and 4.

SIGHUP replaces the program and keeps the tasks (`bashd.daemon.handover`). First it is
tried whether a new daemon could start: with a configuration that is wrong this one goes
on. Then open calls are answered, foreground runs end with that, and the rest is left
for the new program to take over.
"""

from __future__ import annotations

import gc
import logging
import signal
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

import trio

from bashd.core.errors import BashdError
from bashd.daemon.call import Dispatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from bashd.daemon.listener import Listener
    from bashd.daemon.notify import Notifier
    from bashd.daemon.server import Server

logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_RECHECK_S: Final = 5.0
"""How often a daemon without clients looks whether its last tasks have ended."""
_BEATS: Final = 3
"""Watchdog messages in the time of one; systemd recommends two."""


class End(Enum):
    """How a daemon's life ended."""

    CLEAN = "clean"
    UNCLEAN = "unclean"
    """Not every task was gone in time."""
    AGAIN = "again"
    """The program is to be replaced; tasks go on."""


class Service(Dispatch, Protocol):
    """What the life of a daemon needs of the service."""

    @property
    def busy(self) -> bool:
        """Whether a call or a task is under way."""
        ...

    async def serve(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run until cancelled or stopped."""
        ...

    async def leave(self) -> None:
        """Get ready for a new program that takes the tasks over."""
        ...

    async def stop(self) -> None:
        """End every task and wait until nothing of them is left."""
        ...


@dataclass(frozen=True, slots=True)
class Life:
    """One daemon's parts and habits."""

    listener: Listener
    service: Service
    server: Server
    notifier: Notifier
    announce: Callable[[], None]
    """Called once the daemon accepts."""
    check: Callable[[], Awaitable[None]]
    """Called for a reload: raises if a new daemon would not start here."""
    stop_s: float
    """Seconds the service may take to end every task."""
    idle_exit_s: float | None = None
    """Leave after that long without connection and work; None: stay."""


async def live(life: Life) -> End:
    """Serve until told to stop, to begin again, or idle."""
    for number in _SIGNALS:
        # A signal that comes as the receiver closes is raised again as it was before;
        # by default it would kill us with the right to the path in our hands.
        signal.signal(number, signal.SIG_IGN)
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        # The program before this one may have left them blocked; see below.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        async with trio.open_nursery() as service_nursery:
            await service_nursery.start(life.service.serve)
            async with trio.open_nursery() as connections:
                again = await _accept_until_end(life, connections, signals)
                end = await (_leave(life) if again else _stop(life, signals))
                connections.cancel_scope.cancel()
            service_nursery.cancel_scope.cancel()
        if end is End.AGAIN:
            # What comes now is for the new program: it waits until that listens.
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    return end


async def _accept_until_end(
    life: Life, connections: trio.Nursery, signals: AsyncIterator[int]
) -> bool:
    """Serve until the end; returns whether to begin again."""
    heard: list[int] = []
    async with trio.open_nursery() as watching:
        watching.start_soon(life.server.accept, connections)
        if life.notifier.watchdog_s is not None:
            watching.start_soon(_feed_watchdog, life.notifier, life.notifier.watchdog_s)
        if life.idle_exit_s is not None:
            watching.start_soon(
                _leave_when_idle, life, life.idle_exit_s, connections, watching
            )
        # Code and configuration stay: walking them took the collector 18 ms each time,
        # in the middle of somebody's command.
        gc.freeze()
        life.announce()
        life.notifier.ready(f"listening on {life.listener.path}")
        logger.info("listening on %s", life.listener.path)
        watching.start_soon(_heed_signals, life, signals, watching, heard)
    return signal.SIGHUP in heard


async def _heed_signals(
    life: Life,
    signals: AsyncIterator[int],
    watching: trio.Nursery,
    heard: list[int],
) -> None:
    async for number in signals:
        if number != signal.SIGHUP or await _may_begin_again(life):
            logger.info("%s: ending", signal.Signals(number).name)
            heard.append(number)
            watching.cancel_scope.cancel()
            return


async def _may_begin_again(life: Life) -> bool:
    life.notifier.reloading()
    try:
        await life.check()
    except BashdError as error:
        logger.error("nothing was reloaded: %s", error.message)  # noqa: TRY400
        life.notifier.ready(f"listening on {life.listener.path}")
        return False
    return True


async def _leave(life: Life) -> End:
    # Without a word to the service manager: the new program says that it is ready.
    await life.server.finish("the daemon is being replaced; ask again")
    await life.service.leave()
    return End.AGAIN


async def _feed_watchdog(notifier: Notifier, within_s: float) -> None:
    # From this very loop: a loop that stands still must not look alive.
    while True:
        notifier.alive()
        await trio.sleep(within_s / _BEATS)


async def _leave_when_idle(
    life: Life, after_s: float, connections: trio.Nursery, watching: trio.Nursery
) -> None:
    server, service = life.server, life.service
    while True:
        if server.connections:
            await server.wait_changed()
            continue
        if service.busy:
            with trio.move_on_after(min(_RECHECK_S, after_s)):
                await server.wait_changed()
            continue
        with trio.move_on_after(after_s) as pause:
            await server.wait_changed()
        # The time may be up and a client let in, both since we last looked.
        if not pause.cancelled_caught or server.connections or service.busy:
            continue
        if life.listener.stop_if_unused(lambda: server.accept_pending(connections)):
            logger.info("idle for %g seconds: ending", after_s)
            watching.cancel_scope.cancel()
            return


async def _stop(life: Life, signals: AsyncIterator[int]) -> End:
    life.notifier.stopping()
    life.listener.stop()
    clean = False
    async with trio.open_nursery() as stopping:
        stopping.start_soon(_hurry, signals, stopping)
        with trio.move_on_after(life.stop_s):
            await life.service.stop()
            clean = True
        if not clean:
            logger.error("not every task ended within %g seconds", life.stop_s)
        await life.server.finish("the daemon is stopping")
        stopping.cancel_scope.cancel()
    return End.CLEAN if clean else End.UNCLEAN


async def _hurry(signals: AsyncIterator[int], stopping: trio.Nursery) -> None:
    async for number in signals:
        if number != signal.SIGHUP:
            logger.warning("%s again: not waiting", signal.Signals(number).name)
            stopping.cancel_scope.cancel()
