"""``exec.run_or_detach``: a foreground command that may go on as a task.

It is a task from its first byte, only without an id: so nothing is lost when it is
listed, and its output is in files that survive the daemon. Until then it behaves as a
foreground command: its timeout counts and its caller's abort ends it.
"""

from __future__ import annotations

import trio

from bashd.core.errors import AbortedError, RunnerFailedError
from bashd.core.model import RunResult, SandboxFacts
from bashd.daemon.background import Background
from bashd.daemon.call import Call
from bashd.daemon.execution import Command, usage
from bashd.daemon.foreground import Progress, start_streams
from bashd.daemon.output import StreamStore
from bashd.daemon.run import ABORT, TIMEOUT
from bashd.daemon.session import Session
from bashd.daemon.task import Task
from bashd.protocol.messages import DetachResult


async def run_or_detach(
    background: Background,
    session: Session,
    command: Command,
    stores: tuple[StreamStore, StreamStore],
    *,
    call: Call,
    owner: str | None,
    limit_s: float,
    stream: bool,
) -> DetachResult:
    """Run *command* for at most *limit_s* in the foreground.

    Raises:
        AbortedError: The caller had withdrawn it before the spawn.
        StartError: It could not be started; so do the other errors of a run.
    """
    if call.abort.aborted:
        raise AbortedError(f"aborted before spawn: {call.abort.reason}")
    progress = Progress()
    task = background.start_unlisted(
        session,
        command,
        stores,
        owner=owner,
        followers=progress.followers if stream else (None, None),
    )
    undo = (
        call.abort.subscribe(lambda: task.stop.request(ABORT)),
        call.kill.subscribe(lambda: task.stop.request(ABORT, force=True)),
    )
    try:
        async with trio.open_nursery() as nursery:
            if stream:
                _follow(nursery, call, task, progress)
            settled = await _wait(task, command.spec.timeout_ms / 1000, limit_s)
            if not settled:
                nursery.cancel_scope.cancel()
    finally:
        for unsubscribe in undo:
            unsubscribe()
    if session.closing:
        # Too late to be listed; the end of its cell is its own.
        await task.done.wait()
    # It may have settled after all while the streams were being ended.
    if not task.settled:
        background.list(task)
        return DetachResult(result=None, task=task.info())
    result = _result(task, command)
    if result.aborted and call.client.closed.aborted:
        background.list_cut_off(task)
    else:
        _keep_or_discard(task, result)
    return DetachResult(result=result, task=None)


async def _wait(task: Task, timeout_s: float, limit_s: float) -> bool:
    """Wait for the task's end; False when the limit came first."""
    with trio.move_on_after(min(timeout_s, limit_s)):
        await task.done.wait()
    if task.settled:
        return True
    if timeout_s <= limit_s or task.stop.cause is not None:
        task.stop.request(TIMEOUT)
        await task.done.wait()
        return True
    return False


def _follow(nursery: trio.Nursery, call: Call, task: Task, progress: Progress) -> None:
    async def follow() -> None:
        while not task.settled:
            await task.progress.wait()
            progress.grew()
        progress.finish()

    nursery.start_soon(follow)
    start_streams(nursery, call, (task.stdout, task.stderr), progress)


def _result(task: Task, command: Command) -> RunResult:
    ended = task.ended
    if task.failure is not None:
        raise task.failure
    if ended is None or (ended.lost and ended.cause is None):
        raise RunnerFailedError("the cell broke while the command ran")
    return RunResult(
        exit_code=ended.exit_code,
        signal=ended.signal,
        timed_out=ended.cause == TIMEOUT,
        aborted=ended.cause == ABORT,
        timeout_ms=command.spec.timeout_ms,
        stdout=task.stdout.settle(),
        stderr=task.stderr.settle(),
        sandbox=task.sandbox or SandboxFacts(mode=command.mode),
        env_removed=command.environment.removed,
        run_id=command.run_id,
        usage=usage(ended),
    )


def _keep_or_discard(task: Task, result: RunResult) -> None:
    if result.stdout.spill_path or result.stderr.spill_path:
        task.session.spilled.extend((task.stdout, task.stderr))
    else:
        task.stdout.discard()
        task.stderr.discard()
