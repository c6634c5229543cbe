"""The executor seam: the one protocol that daemon and client both fulfil.

The tools above it and the processes below it never meet: whoever holds an
`Executor` can run commands in this process, over a socket, or on another machine,
with the same values and the same errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bashd.core.abort import AbortSignal
from bashd.core.model import (
    ExecRequest,
    ExecSpec,
    Mode,
    RunResult,
    TaskInfo,
    TaskRead,
)

OutputSink = Callable[[str, bytes], None]
"""Receives live output: the stream's name (``stdout`` or ``stderr``) and its bytes."""

TaskListener = Callable[[TaskInfo], None]


class Executor(Protocol):
    """Runs bash commands; knows no humans and shapes no text."""

    @property
    def sandbox_mode(self) -> Mode | None:
        """The configured default mode; None when this executor never confines."""
        ...

    def resolve(self, request: ExecRequest) -> ExecSpec:
        """Apply defaults and caps.

        Raises:
            InvalidParamsError: ``request.timeout_ms`` is not positive and finite, or
                the command holds a NUL.
        """
        ...

    async def run(
        self,
        spec: ExecSpec,
        /,
        *,
        abort: AbortSignal | None = None,
        on_output: OutputSink | None = None,
    ) -> RunResult:
        """Run in the foreground until the command has settled.

        A non-zero exit, a timeout and an abort after the start are results, not
        errors.

        Raises:
            StartError: The command never ran (workdir missing, …).
            SandboxUnavailableError: Nothing can confine it.
            RunnerFailedError: The cell broke.
            AbortedError: *abort* had fired before the command was spawned.
        """
        ...

    async def start(
        self, spec: ExecSpec, /, *, abort: AbortSignal | None = None
    ) -> TaskInfo:
        """Start in the background and return at once; no timeout applies.

        Raises:
            SandboxUnavailableError: Known at start; no id is allocated.
            AbortedError: *abort* had fired already; no id is allocated.
        """
        ...

    async def get(self, task_id: str) -> TaskInfo | None:
        """Return the task, or None for an unknown id."""
        ...

    async def list(self) -> list[TaskInfo]:
        """Return every task of this executor in the order they were started."""
        ...

    async def owner_of(self, task_id: str) -> str | None:
        """Return the owner token verbatim; None for unowned and for unknown ids."""
        ...

    async def read_output(self, task_id: str) -> TaskRead | None:
        """Read what came since the last read (one cursor a task); None if unknown."""
        ...

    async def kill(self, task_id: str) -> bool:
        """End a running task and return at once; False if it had already settled.

        Raises:
            UnknownTaskError: No such task.
        """
        ...

    def on_task_done(self, listener: TaskListener) -> Callable[[], None]:
        """Call *listener* once per settled task; returns an unsubscribe function."""
        ...
