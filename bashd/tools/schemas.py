"""What a model is told about the three tools: names, descriptions, arguments.

Byte-stable: the same composition always yields the same bytes, so a provider's
prompt cache holds. The escalation arguments and their paragraph appear whenever the
executor confines at all, and never otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bashd.core.model import Mode

BASH: Final = "bash"
BASH_OUTPUT: Final = "bash_output"
BASH_KILL: Final = "bash_kill"

ESCALATION_TARGETS: Final = (Mode.WORKSPACE_WRITE, Mode.DANGER_FULL_ACCESS)
"""The closed vocabulary of ``sandbox_permissions``, in the order it is advertised.

Never cut down to the modes wider than the default: a session may be switched
narrower than the default, and strict widening is checked per call.
"""

_BASH_TEXT: Final = """\
Run a command with `bash -c` and return what it printed.

Every call starts a fresh non-login shell: no state (working directory, variables, \
functions) survives from one call to the next. To run somewhere else pass `workdir`; \
do not rely on `cd`.

The result is stdout, then stderr below a `[stderr]` line, then markers. A non-zero \
exit shows as `[exit code: N]`, death by a signal as `[killed by signal: NAME]`, an \
expired timeout as `[timed out after Nms]`. Long output is cut to its tail; the full \
output is in a file whose path is reported when available.

A file operation that the sandbox blocked shows as `[sandbox: file access denied \
under <mode> mode]`. That is policy, not a bug in the command: do not try to reach \
the same effect another way. Background tasks report the same marker through \
`bash_output` after they have finished.

With `run_in_background: true` the call returns a task id at once. Poll the task with \
`bash_output`, stop it with `bash_kill`.

Variables named `$BASHD_*` describe this environment; inspect them when needed."""

_ESCALATION_TEXT: Final = """

There is one sanctioned exception to a denial. Attempting a command that may be denied \
is safe. When a command was denied and a wider mode would cure it, retry the exact \
same command once, in the same turn, with `sandbox_permissions` set to the narrowest \
mode that suffices and a one-sentence `justification`. Do not ask in chat first: the \
approval prompt is the user's consent. If the session says that approval prompts are \
disabled, a denial is final. Never escalate speculatively; up front only if this \
session has already denied the same access. A rejected escalation is final for that \
command, not for others."""

_BASH_OUTPUT_TEXT: Final = """\
Read a background task: only the output it produced since the previous `bash_output` \
call, plus its status. A running task keeps running; poll again for more."""

_BASH_KILL_TEXT: Final = """\
Ask the executor to kill a running background task. What the task had printed stays \
readable with `bash_output`."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """One tool as it is advertised."""

    name: str
    description: str
    parameters: dict[str, object]
    """JSON Schema of the arguments; ``additionalProperties`` stays open."""


def tool_schemas(*, escalation: bool) -> tuple[ToolSchema, ...]:
    """Return the three tools in the order they are registered.

    Args:
        escalation: Whether the executor confines, so that a wider mode exists.
    """
    return (
        ToolSchema(
            BASH,
            _BASH_TEXT + (_ESCALATION_TEXT if escalation else ""),
            bash_parameters(escalation=escalation),
        ),
        ToolSchema(BASH_OUTPUT, _BASH_OUTPUT_TEXT, task_parameters()),
        ToolSchema(BASH_KILL, _BASH_KILL_TEXT, task_parameters()),
    )


def bash_parameters(*, escalation: bool) -> dict[str, object]:
    """Return the JSON Schema of `bash`'s arguments, in declaration order."""
    properties: dict[str, object] = {
        "command": _string("The command, run with `bash -c` in a fresh shell."),
        "description": _string(
            "What the command does, in 5-10 words and active voice, for display and "
            "logs only. Examples: `ls` -> List files in the current directory; "
            "`git status` -> Show the working tree status; `npm install` -> Install "
            "package dependencies."
        ),
        "timeoutMs": {
            "type": "number",
            "description": (
                "Timeout of this command in milliseconds. The executor applies a "
                "default and a cap, and kills the command when it expires."
            ),
        },
        "workdir": _string(
            "Working directory of this call. Default: the session's workspace; a "
            "relative path is resolved against it."
        ),
        "run_in_background": {
            "type": "boolean",
            "description": (
                "Return a task id at once instead of waiting. No timeout applies."
            ),
        },
    }
    if escalation:
        properties["sandbox_permissions"] = {
            "type": "string",
            "enum": [str(mode) for mode in ESCALATION_TARGETS],
            "description": (
                "The wider mode needed. Only as a one-shot retry of a command that "
                "was just denied; needs `justification` and the user's approval."
            ),
        }
        properties["justification"] = _string(
            "One sentence for the user: why this exact command needs the wider mode. "
            "Only together with `sandbox_permissions`."
        )
    return {
        "type": "object",
        "properties": properties,
        "required": ["command", "description"],
    }


def task_parameters() -> dict[str, object]:
    """Return the JSON Schema of the arguments of both task tools."""
    return {
        "type": "object",
        "properties": {
            "task_id": _string("The id that starting the background task returned.")
        },
        "required": ["task_id"],
    }


def _string(description: str) -> dict[str, object]:
    return {"type": "string", "description": description}
