"""Tells a session that its background task has finished, once.

A notice is context for the session's next request, not a wake-up: an idle agent
stays idle. Without an owner, or without a live agent of the owner's session, it is
dropped; whoever keeps notices for absent sessions does so below this layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bashd.tools.agent import AgentRegistry, find_live
from bashd.tools.render import status_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from bashd.core.executor import Executor
    from bashd.core.model import TaskInfo

NOTICE_SOURCE: Final = {"kind": "plugin", "plugin": "tool-bash"}


def notice_text(task: TaskInfo) -> str:
    """Return what a session is told about its finished *task*."""
    return (
        f"background bash task {task.task_id} finished {status_line(task)}. "
        "Read its output with bash_output."
    )


def watch(executor: Executor, agents: AgentRegistry) -> Callable[[], None]:
    """Inject a notice for every task that settles; returns what stops that."""

    def on_done(task: TaskInfo) -> None:
        # An empty token is a real owner, so "has one" is not "is truthy".
        if task.owner is None:
            return
        agent = find_live(agents, task.owner)
        if agent is None:
            return
        try:
            agent.inject(notice_text(task), dict(NOTICE_SOURCE))
        except Exception as error:
            # The agent went away between the look-up and the call. Anything else is
            # the executor's to log; it keeps its other listeners going.
            if "is disposed" not in str(error):
                raise

    return executor.on_task_done(on_done)
