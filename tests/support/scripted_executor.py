"""Executors that answer from a script, for what only texts and requests can show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bashd.core.errors import UnknownTaskError
from bashd.core.executor import TaskListener
from bashd.core.model import (
    ExecRequest,
    ExecSpec,
    Mode,
    RunResult,
    SandboxFacts,
    StreamOutput,
    TaskInfo,
    TaskRead,
    TaskStatus,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from bashd.core.abort import AbortSignal
    from bashd.core.executor import OutputSink


def run_result(
    *,
    stdout: str | StreamOutput = "",
    stderr: str | StreamOutput = "",
    exit_code: int | None = 0,
    signal: str | None = None,
    timed_out: bool = False,
    timeout_ms: float = 120_000,
    sandbox: SandboxFacts | None = None,
) -> RunResult:
    """Build a settled foreground result."""
    return RunResult(
        exit_code=None if signal else exit_code,
        signal=signal,
        timed_out=timed_out,
        aborted=False,
        timeout_ms=timeout_ms,
        stdout=StreamOutput(stdout) if isinstance(stdout, str) else stdout,
        stderr=StreamOutput(stderr) if isinstance(stderr, str) else stderr,
        sandbox=sandbox,
    )


def task_info(
    *,
    task_id: str = "bash-1",
    status: TaskStatus = TaskStatus.RUNNING,
    exit_code: int | None = None,
    signal: str | None = None,
    owner: str | None = None,
    sandbox: SandboxFacts | None = None,
) -> TaskInfo:
    """Build a background task as an executor lists it."""
    return TaskInfo(
        task_id=task_id,
        session_id=owner,
        command="true",
        status=status,
        exit_code=exit_code,
        signal=signal,
        started_at=0.0,
        age_s=0.0,
        owner=owner,
        sandbox=sandbox,
    )


@dataclass
class ScriptedExecutor:
    """Answers every command with `result`, every read with `read`; records requests."""

    sandbox_mode: Mode | None = None
    result: RunResult = field(default_factory=run_result)
    read: TaskRead | None = None
    on_run: Callable[[ExecSpec], None] = lambda _spec: None
    requests: list[ExecRequest] = field(default_factory=list[ExecRequest])
    runs: list[ExecSpec] = field(default_factory=list[ExecSpec])
    starts: list[ExecSpec] = field(default_factory=list[ExecSpec])
    listeners: list[TaskListener] = field(default_factory=list[TaskListener])
    tasks: dict[str, TaskInfo] = field(default_factory=dict[str, TaskInfo])

    def resolve(self, request: ExecRequest) -> ExecSpec:
        self.requests.append(request)
        return ExecSpec(
            command=request.command,
            workdir=request.workdir or "/",
            timeout_ms=request.timeout_ms or 120_000,
            stdout_max_bytes=64_000,
            owner=request.owner,
            sandbox_mode=request.sandbox_mode or self.sandbox_mode,
        )

    async def run(
        self,
        spec: ExecSpec,
        *,
        abort: AbortSignal | None = None,
        on_output: OutputSink | None = None,
    ) -> RunResult:
        self.runs.append(spec)
        self.on_run(spec)
        return self.result

    async def start(
        self, spec: ExecSpec, *, abort: AbortSignal | None = None
    ) -> TaskInfo:
        self.starts.append(spec)
        task = task_info(task_id=f"bash-{len(self.tasks) + 1}", owner=spec.owner)
        self.tasks[task.task_id] = task
        return task

    async def get(self, task_id: str) -> TaskInfo | None:
        return self.tasks.get(task_id)

    async def list(self) -> list[TaskInfo]:
        return list(self.tasks.values())

    async def owner_of(self, task_id: str) -> str | None:
        task = self.tasks.get(task_id)
        return task.owner if task else None

    async def read_output(self, task_id: str) -> TaskRead | None:
        return self.read

    async def kill(self, task_id: str) -> bool:
        if task_id not in self.tasks:
            raise UnknownTaskError(f'unknown bash task "{task_id}"')
        return True

    def on_task_done(self, listener: TaskListener) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def finish(self, task: TaskInfo) -> None:
        """Tell every listener that *task* has settled, as an executor would."""
        self.tasks[task.task_id] = task
        for listener in list(self.listeners):
            listener(task)
