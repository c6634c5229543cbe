"""``exec.start``: tasks that outlive the call and the client that started them."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace

import trio

from bashd.core.errors import BashdError, LimitError, SandboxUnavailableError
from bashd.core.model import SandboxFacts, TaskStatus
from bashd.daemon.execution import Command, Execution, feed, stdin_pipe
from bashd.daemon.output import StreamStore
from bashd.daemon.run import Ended, Stop
from bashd.daemon.session import Session
from bashd.daemon.task import Task, TaskTable, host_pid

logger = logging.getLogger(__name__)

_NEVER_RAN = Ended(None, None, None, 0, 0, 0, lost=True)


@dataclass(slots=True)
class Background:
    """Starts tasks in the service's nursery and settles them."""

    execution: Execution
    tasks: TaskTable
    nursery: trio.Nursery
    max_tasks: int
    """Running tasks per user."""

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
        uid = session.identity.uid
        running = sum(not task.settled for task in self.tasks.of_user(uid))
        if running >= self.max_tasks:
            raise LimitError(
                f"{running} tasks are running for this user; kill one, or raise"
                " [limits] tasks"
            )
        task = Task(
            task_id=self.tasks.next_id(uid),
            session=session,
            run_id=command.run_id,
            command=command.spec.command,
            workdir=command.workdir or session.cwd,
            owner=owner,
            mode=command.mode,
            stdout=stores[0],
            stderr=stores[1],
            stop=Stop(),
        )
        self.tasks.add(task)
        session.active += 1
        self.nursery.start_soon(self._see_through, task, command, deadline_s, stdin)
        return task

    async def _see_through(
        self,
        task: Task,
        command: Command,
        deadline_s: float | None,
        stdin: trio.abc.ReceiveChannel[bytes] | None,
    ) -> None:
        session = task.session
        ended, facts = _NEVER_RAN, None
        read_fd = -1
        try:
            if stdin is not None:
                read_fd, write_fd = stdin_pipe(session.identity.uid)
                command = replace(command, stdin_fd=read_fd)
                self.nursery.start_soon(feed, write_fd, stdin)
            ended, facts = await self._run(task, command, deadline_s)
        except SandboxUnavailableError as error:
            logger.warning("task %s: %s", task.task_id, error.message)
            facts = _runner_failed(command)
        except BashdError as error:
            text = error.message.removeprefix("spawn failed: ")
            task.stderr.write(f"spawn failed: {text}\n".encode())
        finally:
            if read_fd >= 0:
                os.close(read_fd)
            session.active -= 1
            session.touch()
            task.stdout.settle()
            task.stderr.settle()
            task.settle(ended, facts)
        if not session.closing:
            self.tasks.announce(task)

    async def _run(
        self, task: Task, command: Command, deadline_s: float | None
    ) -> tuple[Ended, SandboxFacts | None]:
        started = await self.execution.start(task.session, command)
        task.host_pid = host_pid(started.spare.pidfd)
        ended, started = await self.execution.run(
            task.session,
            command,
            started,
            task.stdout,
            task.stderr,
            timeout_s=deadline_s,
            stop=task.stop,
            on_progress=task.notice_progress,
        )
        if not command.mode.confines:
            # Full access: foreground says so, a task carries no facts.
            return ended, None
        return ended, self.execution.judge(command, started, ended, task.stderr)

    async def stop_tasks(self, session: Session) -> None:
        """Kill a session's running tasks and wait until each has settled."""
        running = [t for t in self.tasks.of_session(session) if not t.settled]
        for task in running:
            task.kill()
        for task in running:
            await task.done.wait()


def _runner_failed(command: Command) -> SandboxFacts:
    return SandboxFacts(
        mode=command.mode,
        enforcement="partial",
        runner=command.runner,
        runner_failed=True,
    )


def list_aborted(task: Task, ended: Ended, facts: SandboxFacts | None) -> None:
    """Mark a foreground run that was cut off, so that its output stays readable."""
    task.foreground = True
    task.status = TaskStatus.KILLED
    task.settle(ended, facts)
