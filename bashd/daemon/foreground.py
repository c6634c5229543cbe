"""``exec.run``: one command from request to result, with live output on the way.

The output is drained into stores at the command's speed; live output is read from
there at the client's speed, so a slow client holds up nobody.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, replace

import trio

from bashd.core.errors import AbortedError, BashdError, RunnerFailedError
from bashd.core.model import RunResult, SandboxFacts
from bashd.daemon.call import Call
from bashd.daemon.drain import Follower
from bashd.daemon.execution import (
    Command,
    Execution,
    feed,
    stdin_pipe,
    usage,
)
from bashd.daemon.judgement import Case, Judge
from bashd.daemon.output import StreamStore
from bashd.daemon.run import ABORT, TIMEOUT, Ended, Stop
from bashd.daemon.session import Session
from bashd.protocol.messages import ExecOutput

_PIECE_BYTES = 192 * 1024
"""Live output per notification: a few pipe fills, 256 KiB as base64."""


@dataclass(frozen=True, slots=True)
class ForegroundRun:
    """A settled run: what its result says, and what a listing needs."""

    result: RunResult
    command: Command
    stdout: StreamStore
    stderr: StreamStore
    ended: Ended
    facts: SandboxFacts
    workdir: str


class Progress:
    """Wakes the streamers when a stream has grown or the run is over."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.over = False
        self.followers = (Follower(), Follower())
        """Of stdout and stderr: a stream waits rather than outrun its live reader."""

    def grew(self) -> None:
        """Wake who waits for more."""
        event, self.event = self.event, trio.Event()
        event.set()

    def finish(self) -> None:
        """Say that nothing more comes."""
        self.over = True
        self.grew()


@dataclass(frozen=True, slots=True)
class Foreground:
    """Runs prepared commands for calls."""

    execution: Execution
    judge: Judge

    async def run(
        self,
        session: Session,
        command: Command,
        stores: tuple[StreamStore, StreamStore],
        call: Call,
        *,
        stdin: trio.abc.ReceiveChannel[bytes] | None,
        stream: bool,
    ) -> ForegroundRun:
        """Run *command* until it has settled.

        Raises:
            AbortedError: The caller had withdrawn it before the spawn.
            StartError: It could not be started.
            SandboxUnavailableError: Nothing can confine it.
            RunnerFailedError: The cell broke under it.
        """
        if call.abort.aborted:
            raise AbortedError(f"aborted before spawn: {call.abort.reason}")
        stop = Stop()
        undo = (
            call.abort.subscribe(lambda: stop.request(ABORT)),
            call.kill.subscribe(lambda: stop.request(ABORT, force=True)),
        )
        try:
            if stdin is None and not stream:
                return await self._settle(session, command, stores, stop, None)
            return await self._with_helpers(
                session, command, stores, call, stop, stdin=stdin, stream=stream
            )
        except BashdError as error:
            self.judge.failed(
                session, command.run_id, command.spec.command, error.message
            )
            raise
        finally:
            for unsubscribe in undo:
                unsubscribe()

    async def _with_helpers(
        self,
        session: Session,
        command: Command,
        stores: tuple[StreamStore, StreamStore],
        call: Call,
        stop: Stop,
        *,
        stdin: trio.abc.ReceiveChannel[bytes] | None,
        stream: bool,
    ) -> ForegroundRun:
        progress = Progress()
        feeding = trio.CancelScope()
        outcome: ForegroundRun | BashdError
        read_fd = -1
        async with trio.open_nursery() as nursery:
            try:
                if stdin is not None and command.terminal is None:
                    read_fd, write_fd = stdin_pipe(session.identity.uid)
                    command = replace(command, stdin_fd=read_fd)
                    nursery.start_soon(_feed, feeding, write_fd, stdin)
                if stream:
                    start_streams(nursery, call, stores, progress)
                outcome = await self._settle(
                    session, command, stores, stop, progress, stream=stream
                )
            except BashdError as error:
                outcome = error
            finally:
                if read_fd >= 0:
                    os.close(read_fd)
                progress.finish()
                feeding.cancel()
        if isinstance(outcome, BashdError):
            raise outcome
        return outcome

    async def _settle(
        self,
        session: Session,
        command: Command,
        stores: tuple[StreamStore, StreamStore],
        stop: Stop,
        progress: Progress | None,
        *,
        stream: bool = False,
    ) -> ForegroundRun:
        stdout, stderr = stores
        started = await self.execution.start(session, command, stop=stop)
        own_s = command.spec.timeout_ms / 1000 if command.has_timeout else None
        ended, started = await self.execution.run(
            session,
            command,
            started,
            stdout,
            stderr,
            timeout_s=command.sooner(own_s),
            stop=stop,
            on_progress=None if progress is None else progress.grew,
            followers=progress.followers if stream and progress else (None, None),
        )
        if ended.lost and ended.cause is None:
            raise RunnerFailedError(
                "the cell broke while the command ran:"
                f" {started.spare.cell.diagnosis()}; the next call gets a fresh one"
            )
        facts = await self.judge.facts(
            Case(
                session,
                started.slot.built,
                ended,
                stdout,
                stderr,
                command.run_id,
                command.spec.command,
                started.workdir.path,
                command.environment.removed,
                started.trail,
                started.findings,
                asked_by=command.asked_by,
                notes=command.notes(ended),
            )
        )
        result = RunResult(
            exit_code=ended.exit_code,
            signal=ended.signal,
            timed_out=ended.cause == TIMEOUT,
            aborted=ended.cause == ABORT,
            timeout_ms=command.spec.timeout_ms,
            stdout=stdout.settle(),
            stderr=stderr.settle(),
            sandbox=facts,
            env_removed=command.environment.removed,
            run_id=command.run_id,
            usage=usage(ended),
        )
        return ForegroundRun(
            result, command, stdout, stderr, ended, facts, started.workdir.path
        )


async def _feed(
    scope: trio.CancelScope, write_fd: int, pieces: trio.abc.ReceiveChannel[bytes]
) -> None:
    with scope:
        await feed(write_fd, pieces)


def start_streams(
    nursery: trio.Nursery,
    call: Call,
    stores: tuple[StreamStore, StreamStore],
    progress: Progress,
) -> None:
    """Send both streams live until *progress* is over."""
    for store, follower in zip(stores, progress.followers, strict=True):
        nursery.start_soon(_stream, call, store, progress, follower)


async def _stream(
    call: Call, store: StreamStore, progress: Progress, follower: Follower
) -> None:
    try:
        await _stream_to_end(call, store, progress, follower)
    finally:
        follower.leave()


async def _stream_to_end(
    call: Call, store: StreamStore, progress: Progress, follower: Follower
) -> None:
    """Send what is kept of a stream from its start on, at the client's speed."""
    offset = 0
    while True:
        event, over = progress.event, progress.over
        while True:
            span = store.read_range(offset, _PIECE_BYTES)
            if not span.data:
                break
            offset = span.end
            data = base64.b64encode(span.data).decode("ascii")
            piece = ExecOutput(call.request_id, store.label, data, span.start)
            if not await call.notify("exec.output", piece):
                return
            follower.advance(span.end)
        if over:
            return
        await event.wait()
