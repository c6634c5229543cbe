"""What a settled command means for a person and for a shell: markers, exit status.

Works on the result as the daemon sent it, a plain dict: typed values would cost the
command line more than the whole exchange does.
"""

from __future__ import annotations

import signal

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final

    from bashd.core.errors import BashdError

TIMED_OUT_STATUS: Final = 124
"""As coreutils' timeout has it."""
FAILURE_STATUS: Final = 125
"""bashd's own failure; as `env`, `timeout` and `docker run` have it."""


def exit_status(outcome: dict[str, Any]) -> int:
    """Return the status that a process which ended like this leaves to its shell.

    Args:
        outcome: A `RunResult` or a `TaskInfo`.
    """
    if outcome.get("timed_out"):
        return TIMED_OUT_STATUS
    if outcome["signal"] is not None:
        return 128 + _number_of(outcome["signal"])
    if outcome["exit_code"] is None:
        # A task that never got as far as a process.
        return FAILURE_STATUS
    return outcome["exit_code"]


def failure_status(error: BashdError) -> int:
    """Return the exit status that goes with an error."""
    # Too late to be run is timed out.
    return TIMED_OUT_STATUS if error.code == "TIME_OVER" else FAILURE_STATUS


def _number_of(name: str) -> int:
    try:
        return signal.Signals[name]
    except KeyError:
        pass
    # Real-time signals have no names but these.
    offset = name.removeprefix("SIGRTMIN+")
    return signal.SIGRTMIN + int(offset) if offset.isdecimal() else 0


def markers(result: dict[str, Any], writable: Sequence[str] | None = None) -> list[str]:
    """Return the lines that say what the exit status cannot.

    Args:
        result: The settled command.
        writable: Places it could write to; None where nobody knows.
    """
    lines = denial_lines(result.get("sandbox"), writable)
    if result["timed_out"]:
        lines.append(f"[timed out after {_plain(result['timeout_ms'])}ms]")
    if result["signal"] is not None:
        lines.append(f"[killed by signal: {result['signal']}]")
    elif result["exit_code"] != 0:
        lines.append(f"[exit code: {result['exit_code']}]")
    return lines


def task_markers(task: dict[str, Any]) -> list[str]:
    """Return the lines that say how a settled background task ended."""
    sandbox = task.get("sandbox")
    if sandbox is not None and sandbox.get("runner_failed"):
        return [
            f"[sandbox: the sandbox runner itself failed under {sandbox['mode']} mode "
            "\N{EM DASH} the command did not run; this is a sandbox problem, not a "
            "command failure]"
        ]
    if task["status"] == "killed":
        by = f" by {task['signal']}" if task["signal"] else ""
        return [*denial_lines(sandbox), f"[status: killed{by}]"]
    if task["exit_code"]:
        return [*denial_lines(sandbox), f"[exit code: {task['exit_code']}]"]
    return denial_lines(sandbox)


def denial_lines(
    sandbox: dict[str, Any] | None, writable: Sequence[str] | None = None
) -> list[str]:
    """Return the marker of a denial, what was denied where that is known, and hints."""
    if sandbox is None or not (sandbox["denied"] or sandbox.get("hints")):
        return []
    # Only where there is something to say, which is not where speed counts.
    from bashd.core.model import SandboxFacts  # noqa: PLC0415
    from bashd.protocol.codec import from_wire  # noqa: PLC0415
    from bashd.tools.render import denial_detail, hint_lines  # noqa: PLC0415

    facts = from_wire(SandboxFacts, sandbox)
    lines: list[str] = []
    if facts.denied:
        lines.append(f"[sandbox: file access denied under {facts.mode} mode]")
        if detail := denial_detail(facts.denials, writable):
            lines.append(detail)
    return [*lines, *hint_lines(facts.hints)]


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)
