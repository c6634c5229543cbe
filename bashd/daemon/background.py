"""``exec.start``: tasks that outlive the call, the client and the daemon."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, replace
from functools import partial

import trio

from bashd.core.errors import (
    AbortedError,
    BashdError,
    LimitError,
    SandboxUnavailableError,
)
from bashd.core.metadata import Findings
from bashd.core.model import SandboxFacts, TaskStatus
from bashd.daemon import recall
from bashd.daemon.cell import Spare
from bashd.daemon.cells import BuiltCell
from bashd.daemon.execution import (
    Command,
    Execution,
    Started,
    feed,
    stdin_pipe,
)
from bashd.daemon.judgement import Case, Judge
from bashd.daemon.output import StreamStore
from bashd.daemon.pidfd import host_pid
from bashd.daemon.records import Records
from bashd.daemon.run import ABORT, KILL, TIMEOUT, Ended, Followers, Stop, drive, lost
from bashd.daemon.session import Session
from bashd.daemon.shares import Shares
from bashd.daemon.task import Task, TaskTable

logger = logging.getLogger(__name__)

_NOTHING_FOUND = Findings()
_NEVER_RAN = lost()


@dataclass(slots=True)
class Background:
    """Starts tasks in the service's nursery, settles them and keeps their records."""

    execution: Execution
    judge: Judge
    tasks: TaskTable
    records: Records
    nursery: trio.Nursery
    shares: Shares
    """Running tasks per user."""
    grace_s: float

    def start(
        self,
        session: Session,
        command: Command,
        stores: tuple[StreamStore, StreamStore],
        *,
        owner: str | None,
        deadline_s: float | None,
        stdin: trio.abc.ReceiveChannel[bytes] | None = None,
    ) -> Task:
        """Give the command an id and start it; returns at once.

        Raises:
            LimitError: The user has too many running tasks.
        """
        self._check_quota(session)
        deadline_s = command.sooner(deadline_s)
        task = _new_task(session, command, stores, owner=owner, deadline_s=deadline_s)
        self.list(task)
        session.active += 1
        self.nursery.start_soon(self._see_through, task, command, deadline_s, stdin)
        return task

    def start_unlisted(
        self,
        session: Session,
        command: Command,
        stores: tuple[StreamStore, StreamStore],
        *,
        owner: str | None,
        followers: Followers,
    ) -> Task:
        """Start a command that may become a task; `list` gives it its id."""
        self._check_quota(session)
        left_s = command.sooner(None)
        task = _new_task(session, command, stores, owner=owner, deadline_s=left_s)
        task.listed = False
        session.active += 1
        self.nursery.start_soon(
            self._see_through, task, command, left_s, None, followers
        )
        return task

    def list(self, task: Task) -> None:
        """Give a task its id and show it from now on."""
        task.task_id = self.tasks.next_id(task.session.identity.uid)
        task.listed = True
        self.records.save_counters(self.tasks.counters)
        self.tasks.add(task)
        for store in (task.stdout, task.stderr):
            store.when_lost(partial(self.save, task))
        self.save(task)

    def _check_quota(self, session: Session) -> None:
        uid = session.identity.uid
        running = sum(not task.settled for task in self.tasks.of_user(uid))
        if running >= self.shares.limits(session.identity).tasks:
            raise LimitError(
                f"{running} tasks are running for this user; kill one, or raise"
                " [limits] tasks"
            )

    async def _see_through(
        self,
        task: Task,
        command: Command,
        deadline_s: float | None,
        stdin: trio.abc.ReceiveChannel[bytes] | None,
        followers: Followers = (None, None),
    ) -> None:
        ended, facts = _NEVER_RAN, None
        read_fd = -1
        try:
            if stdin is not None:
                read_fd, write_fd = stdin_pipe(task.session.identity.uid)
                command = replace(command, stdin_fd=read_fd)
                self.nursery.start_soon(feed, write_fd, stdin)
            ended, facts = await self._run(task, command, deadline_s, followers)
        except AbortedError as error:
            task.failure = error
        except SandboxUnavailableError as error:
            logger.warning("task %s: %s", task.task_id, error.message)
            self._tell_failed(task, error.message)
            task.failure = error
            facts = _runner_failed(command)
        except BashdError as error:
            self._tell_failed(task, error.message)
            task.failure = error
            text = error.message.removeprefix("spawn failed: ")
            task.stderr.write(f"spawn failed: {text}\n".encode())
        finally:
            if read_fd >= 0:
                os.close(read_fd)
        self._settle(task, ended, facts)

    async def _run(
        self,
        task: Task,
        command: Command,
        deadline_s: float | None,
        followers: Followers,
    ) -> tuple[Ended, SandboxFacts | None]:
        def announce(started: Started) -> None:
            task.cell_id = started.slot.cell_id
            task.serial = started.spare.serial
            task.host_pid = host_pid(started.spare.pidfd)
            task.spare = started.spare
            task.trail = started.trail
            if task.listed:
                self.save(task)

        started = await self.execution.start(task.session, command, announce, task.stop)
        ended, started = await self.execution.run(
            task.session,
            command,
            started,
            task.stdout,
            task.stderr,
            timeout_s=command.sooner(deadline_s),
            stop=task.stop,
            on_progress=task.notice_progress,
            followers=followers,
            announce=announce,
        )
        facts = await self._facts(
            started.slot.built,
            ended,
            task,
            env_removed=command.environment.removed,
            asked_by=command.asked_by,
            findings=started.findings,
            notes=command.notes(ended),
        )
        return ended, facts

    def _tell_failed(self, task: Task, why: str) -> None:
        self.judge.failed(task.session, task.run_id, task.command, why)

    def save(self, task: Task) -> None:
        """Keep the task's record up to date."""
        self.records.save_task(
            task.session.session_id, task.task_id, recall.task_record(task)
        )

    def _settle(self, task: Task, ended: Ended, facts: SandboxFacts | None) -> None:
        session, spare = task.session, task.spare
        session.active -= 1
        session.touch()
        task.stdout.settle()
        task.stderr.settle()
        task.settle(ended, facts)
        session.log.append(_run_event(task, ended))
        if task.listed and not session.closing:
            self.tasks.announce(task)
            self.save(task)
        if spare is not None:
            spare.recorded.set()

    def list_aborted(self, task: Task, ended: Ended, facts: SandboxFacts) -> None:
        """List a foreground run that was cut off, so that its output stays readable."""
        task.foreground = True
        task.status = TaskStatus.KILLED
        # Its caller is gone, and no notice was promised.
        task.announced = task.taken = True
        self.tasks.add(task)
        task.settle(ended, facts)
        self.save(task)

    def list_cut_off(self, task: Task) -> None:
        """List an unlisted task whose caller has gone, for its output."""
        task.task_id = self.tasks.next_id(task.session.identity.uid)
        task.listed = task.foreground = task.announced = task.taken = True
        task.status = TaskStatus.KILLED
        self.tasks.add(task)
        self.save(task)

    async def stop_tasks(self, session: Session) -> None:
        """Kill a session's running tasks and wait until each has settled."""
        running = [t for t in self.tasks.of_session(session) if not t.settled]
        for task in running:
            task.kill()
        for task in running:
            await task.done.wait()

    # -- taking over ------------------------------------------------------------------

    def resume(self, task: Task, spare: Spare, built: BuiltCell) -> None:
        """Go on with a task that its keeper has brought back."""
        task.host_pid, task.spare = host_pid(spare.pidfd), spare
        self.nursery.start_soon(self._see_resumed, task, spare, built)

    async def _facts(
        self,
        built: BuiltCell,
        ended: Ended,
        task: Task,
        *,
        env_removed: tuple[str, ...] = (),
        asked_by: int = 0,
        findings: Findings = _NOTHING_FOUND,
        notes: tuple[str, ...] = (),
    ) -> SandboxFacts | None:
        facts = await self.judge.facts(
            Case(
                task.session,
                built,
                ended,
                task.stdout,
                task.stderr,
                task.run_id,
                task.command,
                task.workdir,
                env_removed,
                task.trail,
                findings,
                task.task_id or None,
                asked_by,
                notes,
            )
        )
        # Full access: a foreground result says so, a task carries no facts.
        return facts if facts.mode.confines else None

    async def _see_resumed(self, task: Task, spare: Spare, built: BuiltCell) -> None:
        task.trail = self.judge.evidence.begin(
            spare.pidfd, covered=built.logged, resumed=True
        )
        if task.status is TaskStatus.KILLED:
            # The kill had begun and its ladder died with the daemon.
            task.stop.request(KILL)
        left = task.deadline_at
        ended = await drive(
            spare,
            task.stdout,
            task.stderr,
            run_id=task.run_id,
            timeout_s=None if left is None else max(left - time.time(), 0.0),
            grace_s=self.grace_s,
            stop=task.stop,
            on_progress=task.notice_progress,
        )
        if spare.came_to is not True and task.stop.cause is None:
            # It had been handed over and failed before it was bash.
            self.settle_lost(task)
            return
        self._settle(task, ended, await self._facts(built, ended, task))

    def settle_lost(self, task: Task) -> None:
        """Settle a task that ran when the daemon died and that nobody brought back."""
        facts = task.sandbox or SandboxFacts(
            mode=task.mode, enforcement="partial", runner_failed=True
        )
        self._tell_failed(task, "nobody brought it back after a crash")
        self._settle(task, _NEVER_RAN, facts)

    def end_stranger(self, spare: Spare) -> None:
        """End a command that was brought back and that no record knows."""

        async def end() -> None:
            spare.cell.kill_tree(spare, b"")
            await spare.exited.wait()
            spare.cell.release(spare)

        self.nursery.start_soon(end)


def _run_event(task: Task, ended: Ended) -> dict[str, object]:
    known_by = {"task_id": task.task_id} if task.task_id else {}
    return {
        "type": "bash/run",
        "run_id": task.run_id,
        **known_by,
        "command": task.command[:4096],
        "workdir": task.workdir,
        "mode": str(task.mode),
        "exit_code": task.exit_code,
        "signal": task.signal,
        "timed_out": ended.cause == TIMEOUT,
        "aborted": ended.cause == ABORT,
        "denied": task.sandbox is not None and task.sandbox.denied,
        "wall_ms": ended.wall_ms,
    }


def _new_task(
    session: Session,
    command: Command,
    stores: tuple[StreamStore, StreamStore],
    *,
    owner: str | None,
    deadline_s: float | None,
) -> Task:
    return Task(
        task_id="",
        session=session,
        run_id=command.run_id,
        command=command.spec.command,
        workdir=command.workdir or session.cwd,
        owner=owner,
        mode=command.mode,
        stdout=stores[0],
        stderr=stores[1],
        stop=Stop(),
        deadline_at=None if deadline_s is None else time.time() + deadline_s,
    )


def _runner_failed(command: Command) -> SandboxFacts:
    return SandboxFacts(
        mode=command.mode,
        enforcement="partial",
        runner=command.runner,
        runner_failed=True,
    )
