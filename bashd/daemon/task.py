"""Background tasks: their ids, states, cursors and what readers are told.

A task settles exactly once, and its sandbox facts are in place before anybody hears
of it. Reads that consume share one cursor per task; everything else reads by offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from bashd.core.errors import BashdError
from bashd.core.model import Mode, SandboxFacts, TaskInfo, TaskRead, TaskStatus
from bashd.core.output import decode_delta, join_delta
from bashd.daemon.evidence import Trail
from bashd.daemon.output import StreamStore
from bashd.daemon.run import KILL, Ended, Stop
from bashd.daemon.session import Session

if TYPE_CHECKING:
    from bashd.daemon.cell import Spare


@dataclass(slots=True, eq=False)
class Task:
    """One background command."""

    task_id: str
    session: Session
    run_id: str
    command: str
    workdir: str
    owner: str | None
    mode: Mode
    stdout: StreamStore
    stderr: StreamStore
    stop: Stop
    foreground: bool = False
    """A run that was cut off and is listed for its output."""
    status: TaskStatus = TaskStatus.RUNNING
    exit_code: int | None = None
    signal: str | None = None
    sandbox: SandboxFacts | None = None
    started_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    cpu_ms: int = 0
    max_rss_bytes: int = 0
    oom_killed: bool = False
    deadline_at: float | None = None
    """Seconds since the epoch; None: no deadline was asked for."""
    cell_id: str | None = None
    serial: int = 0
    """With *cell_id*: which process it is, for a daemon that takes over."""
    listed: bool = True
    """False while a foreground call still waits for it; it has no id yet."""
    failure: BashdError | None = None
    """Why it never ran, for that call."""
    ended: Ended | None = None
    trail: Trail | None = None
    """What the kernel records of it."""
    announced: bool = False
    """A subscriber has been told that it settled."""
    taken: bool = False
    """Its owner has taken the news of that, for good."""
    spare: Spare | None = None
    """The process that is its command; None until there is one, and once it settled."""
    host_pid: int = 0
    """Of the shell, while it runs; for accounting only, never for signals."""
    done: trio.Event = field(default_factory=trio.Event)
    cursor_stdout: int = 0
    cursor_stderr: int = 0
    progress: trio.Event = field(default_factory=trio.Event)
    """Replaced after each use; set whenever a stream grew or the task settled."""

    @property
    def settled(self) -> bool:
        """Whether the process is gone and the facts are in place."""
        return self.done.is_set()

    @property
    def runs(self) -> bool:
        """Whether its process is seen to be its command."""
        spare = self.spare
        return spare is not None and not spare.exited.is_set() and spare.runs()

    def kill(self) -> bool:
        """Flip to killed and begin the ladder; False when it had finished."""
        if self.settled or self.status is not TaskStatus.RUNNING:
            return False
        self.status = TaskStatus.KILLED
        self.stop.request(KILL)
        return True

    def settle(self, ended: Ended, sandbox: SandboxFacts | None) -> None:
        """Take in how it ended; the status of a kill is not overwritten."""
        self.ended = ended
        self.exit_code, self.signal = ended.exit_code, ended.signal
        self.cpu_ms = max(self.cpu_ms, ended.cpu_ms)
        self.max_rss_bytes = max(self.max_rss_bytes, ended.max_rss_bytes)
        self.oom_killed = ended.oom_killed
        self.sandbox = sandbox
        if self.status is TaskStatus.RUNNING:
            died = ended.signal is not None or ended.lost or ended.cause is not None
            self.status = TaskStatus.KILLED if died else TaskStatus.COMPLETED
        self.ended_at = time.time()
        self.host_pid, self.spare = 0, None
        self.done.set()
        self.notice_progress()

    def notice_progress(self) -> None:
        """Wake those who follow the output."""
        event, self.progress = self.progress, trio.Event()
        event.set()

    def info(self, *, rss_bytes: int = 0, ports: tuple[int, ...] = ()) -> TaskInfo:
        """Return the task as it is listed."""
        until = self.ended_at if self.ended_at is not None else time.time()
        return TaskInfo(
            task_id=self.task_id,
            session_id=None if self.session.anonymous else self.session.session_id,
            command=self.command,
            status=self.status,
            exit_code=self.exit_code,
            signal=self.signal,
            started_at=round(self.started_at, 3),
            age_s=round(max(until - self.started_at, 0.0), 3),
            stdout_bytes=self.stdout.total,
            stderr_bytes=self.stderr.total,
            cpu_ms=self.cpu_ms,
            rss_bytes=rss_bytes,
            max_rss_bytes=max(self.max_rss_bytes, rss_bytes),
            oom_killed=self.oom_killed,
            ports=ports,
            owner=self.owner,
            workdir=self.workdir,
            run_id=self.run_id,
            sandbox=self.sandbox,
        )

    def read(self) -> TaskRead:
        """Read what came since the last read, and move the cursor."""
        out = self.stdout.read(self.cursor_stdout)
        err = self.stderr.read(self.cursor_stderr)
        final = self.settled
        out_text, out_used = decode_delta(out.data, final=final)
        err_text, err_used = decode_delta(err.data, final=final)
        self.cursor_stdout = out.start + out_used
        self.cursor_stderr = err.start + err_used
        paths = (self.stdout.spill_path, self.stderr.spill_path)
        return TaskRead(
            delta=join_delta(out_text, err_text),
            lossy=out.lossy or err.lossy,
            spill_paths=tuple(path for path in paths if path is not None),
            task=self.info(),
        )


class TaskTable:
    """All tasks of the daemon, numbered per uid in the order of their starts."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[int, str], Task] = {}
        self.counters: dict[int, int] = {}
        """Last task number of each uid."""
        self._listeners: list[Callable[[Task], None]] = []

    def next_id(self, uid: int) -> str:
        """Return the next id of a user; never given twice."""
        number = self.counters.get(uid, 0) + 1
        self.counters[uid] = number
        return f"bash-{number}"

    def add(self, task: Task) -> None:
        """List a task."""
        self._tasks[task.session.identity.uid, task.task_id] = task

    def find(self, uid: int, task_id: str) -> Task | None:
        """Return a user's task; another user's id is unknown."""
        return self._tasks.get((uid, task_id))

    def count(self) -> int:
        """Return how many are listed, settled or not; this takes no time."""
        return len(self._tasks)

    def of_user(self, uid: int) -> list[Task]:
        """Return a user's tasks in the order they were started."""
        return [task for (owner, _), task in self._tasks.items() if owner == uid]

    def of_session(self, session: Session) -> list[Task]:
        """Return a session's tasks in the order they were started."""
        return [task for task in self._tasks.values() if task.session is session]

    def unsettled(self) -> list[Task]:
        """Return the tasks that have not settled."""
        return [task for task in self._tasks.values() if not task.settled]

    def running(self) -> int:
        """Count tasks that have not settled."""
        return len(self.unsettled())

    def forget(self, tasks: Iterable[Task]) -> None:
        """Drop tasks with their output, when their session closes."""
        for task in list(tasks):
            task.stdout.discard()
            task.stderr.discard()
            self._tasks.pop((task.session.identity.uid, task.task_id), None)

    def on_done(self, listener: Callable[[Task], None]) -> None:
        """Call *listener* once for each task that settles."""
        self._listeners.append(listener)

    def announce(self, task: Task) -> None:
        """Tell the listeners that *task* has settled."""
        for listener in list(self._listeners):
            listener(task)
