"""An executor that can let a foreground command go on in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from bashd.core.abort import AbortSignal
    from bashd.core.executor import OutputSink
    from bashd.core.model import ExecSpec, RunResult, TaskInfo


@runtime_checkable
class DetachingExecutor(Protocol):
    """What an executor offers beside `Executor` to support a foreground limit."""

    async def run_or_detach(
        self,
        spec: ExecSpec,
        /,
        *,
        limit_ms: float,
        abort: AbortSignal | None = None,
        on_output: OutputSink | None = None,
    ) -> RunResult | TaskInfo:
        """Run in the foreground for *limit_ms*, then go on as a background task.

        The task keeps the process, every byte printed so far (all still unread), the
        owner of *spec*, and from then on has no timeout.

        Raises:
            StartError: As `Executor.run`; so do the other errors.
        """
        ...
