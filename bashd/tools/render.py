"""Results as a model reads them: output first, then markers in a fixed order.

The markers are literal. They are for reading only: whoever needs facts takes them
from the structured result, because a command can print a marker of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bashd.core.model import (
    Denial,
    RunResult,
    SandboxFacts,
    StreamOutput,
    TaskInfo,
    TaskRead,
    TaskStatus,
)
from bashd.tools.escape import visible_line
from bashd.tools.js import number_text

if TYPE_CHECKING:
    from collections.abc import Sequence

ESCALATION_HINT: Final = (
    "[sandbox: escalation available \N{EM DASH} retry this exact command once with "
    "sandbox_permissions (the narrowest wider mode that suffices) + justification; "
    "the approval prompt asks the user]"
)
_NO_PATH: Final = "(unavailable)"
_DETAIL_LIMIT: Final = 3
"""Refusals named in one detail line; more would bury the exit code below them."""

_OPERATION_WORDS: Final = {
    "write": "write to",
    "read": "read of",
    "create": "creation of",
    "remove": "removal of",
    "rename": "renaming of",
    "link": "linking of",
    "change": "change of",
    "execute": "execution of",
    "connect": "connection to",
    "control": "control of",
    "mount": "mount on",
    "trace": "tracing of",
}
"""How a line speaks of an operation; one without an entry reads ``<operation> to``."""


def render_run(
    result: RunResult, *, escalation: bool, writable: Sequence[str] | None = None
) -> str:
    """Return the text of a settled foreground command.

    Args:
        result: The settled command.
        escalation: Whether the escalation arguments are advertised.
        writable: Places a command may write to under the mode it ran in; None
            where nobody knows.
    """
    body = _stream(result.stdout)
    stderr = _stream(result.stderr)
    if stderr:
        body = _on_new_line(body) + "[stderr]\n" + stderr
    markers = _denial_lines(result.sandbox, escalation=escalation, writable=writable)
    if result.timed_out:
        markers.append(f"[timed out after {number_text(result.timeout_ms)}ms]")
    if result.signal is not None:
        markers.append(f"[killed by signal: {result.signal}]")
    elif result.exit_code:
        markers.append(f"[exit code: {result.exit_code}]")
    return _with_lines(body or "(no output)", markers)


def render_started(task_id: str) -> str:
    """Return the acknowledgement of a background start."""
    return f"started background task {task_id}"


def render_detached(task_id: str, limit_ms: float) -> str:
    """Return the text of a foreground command that went on in the background."""
    return (
        f"command still running after {number_text(limit_ms)}ms; it goes on as "
        f"background task {task_id}. Read its output with bash_output, stop it with "
        "bash_kill."
    )


def render_read(
    read: TaskRead, *, escalation: bool, writable: Sequence[str] | None = None
) -> str:
    """Return the text of one `bash_output` call; arguments as in `render_run`."""
    lines: list[str] = []
    if read.lossy:
        paths = ", ".join(read.spill_paths) or _NO_PATH
        lines.append(f"[some output was dropped from memory; full output: {paths}]")
    lines.append(status_line(read.task))
    facts = read.task.sandbox
    settled = read.task.status is not TaskStatus.RUNNING
    if settled and facts is not None and facts.runner_failed:
        lines.append(
            f"[sandbox: the sandbox runner itself failed under {facts.mode} mode "
            "\N{EM DASH} the command did not run; this is a sandbox problem, not a "
            "command failure]"
        )
    elif settled:
        lines += _denial_lines(facts, escalation=escalation, writable=writable)
    return _with_lines(read.delta or "(no new output)", lines)


def render_kill(task_id: str, *, killed: bool) -> str:
    """Return the text of one `bash_kill` call."""
    if killed:
        return f"killed background task {task_id}"
    return f"task {task_id} had already finished"


def status_line(task: TaskInfo) -> str:
    """Return ``[status: …]`` of a background task."""
    if task.status is TaskStatus.RUNNING:
        return "[status: running]"
    if task.status is TaskStatus.KILLED:
        by = f" by {task.signal}" if task.signal else ""
        return f"[status: killed{by}]"
    return f"[status: completed, exit code: {task.exit_code or 0}]"


def denial_detail(
    denials: Sequence[Denial], writable: Sequence[str] | None
) -> str | None:
    """Return the line that names what was refused; None where no path is known."""
    named = list(dict.fromkeys(_refusal(d) for d in denials if d.path))
    if not named:
        return None
    text = ", ".join(named[:_DETAIL_LIMIT])
    if len(named) > _DETAIL_LIMIT:
        text += f" and {len(named) - _DETAIL_LIMIT} more"
    if writable is None:
        return f"[sandbox: denied {text}]"
    places = ", ".join(visible_line(place) for place in writable) or "nothing"
    return f"[sandbox: denied {text}; writable here: {places}]"


def hint_lines(hints: Sequence[str]) -> list[str]:
    """Return the lines that say what a reader should know of the sandbox."""
    # A hint may hold the name of a variable or a path that a command chose.
    return [f"[sandbox: {visible_line(hint)}]" for hint in hints]


def _denial_lines(
    facts: SandboxFacts | None,
    *,
    escalation: bool,
    writable: Sequence[str] | None,
) -> list[str]:
    if facts is None:
        return []
    if not facts.denied:
        return hint_lines(facts.hints)
    lines = [f"[sandbox: file access denied under {facts.mode} mode]"]
    detail = denial_detail(facts.denials, writable)
    if detail:
        lines.append(detail)
    if escalation:
        lines.append(ESCALATION_HINT)
    return [*lines, *hint_lines(facts.hints)]


def _refusal(denial: Denial) -> str:
    # The path comes from a command's own doing: it must not start a line of its own.
    operation = denial.operation or "access"
    words = _OPERATION_WORDS.get(operation, f"{operation} to")
    if denial.path and denial.path.endswith("/"):
        # Of something in that folder; its name is not known.
        words = words.removesuffix(" of") + " in"
    return f"{visible_line(words)} {visible_line(denial.path or '')}"


def _stream(output: StreamOutput) -> str:
    if not output.truncated:
        return output.text
    path = output.spill_path or _NO_PATH
    return f"{output.text}\n[output truncated; full output: {path}]"


def _on_new_line(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _with_lines(text: str, lines: Sequence[str]) -> str:
    if not lines:
        return text
    return _on_new_line(text) + "\n".join(lines)
