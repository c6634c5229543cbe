"""The failure a model gets to read.

A `ToolError` never leaves the tool layer: `Toolset.call` turns it into a result
with ``is_error`` set. Errors of the executor arrive as `BashdError` and take the
same way out.
"""

from __future__ import annotations

from bashd.core.errors import AbortedError, BashdError


class ToolError(Exception):
    """A call that fails with a text for the model.

    Args:
        message: What the model reads after the prefix ``Error: ``.
        name: Class name of the failure as programs know it.
        code: Stable word for programs.
    """

    def __init__(self, message: str, *, name: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.name = name
        self.code = code


def invalid_args(message: str) -> ToolError:
    """Return the error for arguments the model can correct."""
    return ToolError(message, name="ToolArgsError", code="INVALID_ARGS")


def unknown_tool(name: str) -> ToolError:
    """Return the error for a tool that is not registered."""
    return ToolError(
        f'unknown tool "{name}"', name="ToolNotFoundError", code="UNKNOWN_TOOL"
    )


def unknown_task(task_id: str) -> ToolError:
    """Return the error for a task id nobody knows."""
    return ToolError(
        f'unknown bash task "{task_id}"', name="UnknownTaskError", code="UNKNOWN_TASK"
    )


def foreign_task(task_id: str) -> ToolError:
    """Return the error for a task of another session."""
    return ToolError(
        f"task {task_id} belongs to another session",
        name="NotAllowedError",
        code="NOT_ALLOWED",
    )


def refused(message: str) -> ToolError:
    """Return the error for an escalation or a command that was not let through."""
    return ToolError(message, name="Refused", code="REFUSED")


def internal(message: str) -> ToolError:
    """Return the error for a state that must not occur."""
    return ToolError(message, name="InternalError", code="INTERNAL")


def aborted(message: str = "command aborted") -> ToolError:
    """Return the error for a call its caller withdrew."""
    return ToolError(message, name="AbortError", code="TOOL_ABORTED")


def from_executor(error: BashdError) -> ToolError:
    """Translate what the executor raised; the message stays as it is."""
    if isinstance(error, AbortedError):
        return aborted(error.message)
    return ToolError(error.message, name=type(error).__name__, code=error.code)
