"""Arguments of a tool call: checked in a fixed order, first failure wins.

Nothing runs and nobody is asked before every check here has passed. Only advertised
keys are looked at; everything else a model sends is ignored, and never reaches the
executor because the request is built from the named fields of `BashArgs` alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from bashd.core.model import Mode
from bashd.tools.errors import invalid_args
from bashd.tools.js import compact_json, number_json
from bashd.tools.schemas import bash_parameters, task_parameters


@dataclass(frozen=True, slots=True)
class BashArgs:
    """The arguments of one `bash` call."""

    command: str
    description: str
    timeout_ms: int | float | None = None
    workdir: str | None = None
    background: bool = False
    mode: Mode | None = None
    """The wider mode asked for; None for a plain call."""
    justification: str = ""
    unadvertised: bool = False
    """Escalation was asked for where there is none to ask for."""


def parse_bash_args(args: object, *, escalation: bool) -> BashArgs:
    """Check the arguments of `bash`.

    Args:
        args: What the model sent.
        escalation: Whether the escalation arguments are advertised.

    Raises:
        ToolError: With the contract's text for the first failed check.
    """
    given = check_schema(bash_parameters(escalation=escalation), args)
    command = cast("str", given["command"])
    description = cast("str", given["description"])
    if not command.strip():
        raise invalid_args("invalid command: expected a non-empty string")
    if not description.strip():
        raise invalid_args("invalid description: expected a non-empty string")
    timeout_ms = cast("int | float | None", given.get("timeoutMs"))
    if timeout_ms is not None and not _is_positive_finite(timeout_ms):
        got = number_json(timeout_ms)
        raise invalid_args(f"invalid timeoutMs: expected a positive number, got {got}")
    wanted, justification = _escalation_pair(given)
    workdir = cast("str | None", given.get("workdir"))
    texts = {
        "command": command,
        "workdir": workdir or "",
        "justification": justification,
    }
    for name, text in texts.items():
        _require_encodable(name, text)
    return BashArgs(
        command=command,
        description=description,
        timeout_ms=timeout_ms,
        workdir=workdir,
        background=bool(given.get("run_in_background")),
        mode=Mode(wanted) if escalation and wanted is not None else None,
        justification=justification,
        unadvertised=not escalation and wanted is not None,
    )


def parse_task_args(args: object) -> str:
    """Check the arguments of `bash_output` and `bash_kill`; return the task id.

    Raises:
        ToolError: With the contract's text for the first failed check.
    """
    given = check_schema(task_parameters(), args)
    task_id = cast("str", given["task_id"])
    if not task_id:
        raise invalid_args('invalid task_id: expected a string, got ""')
    return task_id


def check_schema(schema: Mapping[str, object], args: object) -> dict[str, object]:
    """Check *args* against one of our own flat schemas; return them as a dict.

    A key that is present with null counts as absent: required ones are then missing,
    optional ones unset. Defaults are not applied.

    Raises:
        ToolError: All violations, in declaration order.
    """
    if not isinstance(args, Mapping):
        raise invalid_args('invalid arguments: "arguments" must be an object')
    given = {
        key: value
        for key, value in cast("Mapping[str, object]", args).items()
        if value is not None
    }
    required = cast("list[str]", schema["required"])
    properties = cast("dict[str, dict[str, object]]", schema["properties"])
    violations: list[str] = []
    for name, rule in properties.items():
        if name not in given:
            if name in required:
                violations.append(f'missing required property "{name}"')
            continue
        complaint = _violation(rule, given[name])
        if complaint:
            violations.append(f'"{name}" must be {complaint}')
    if violations:
        raise invalid_args("invalid arguments: " + "; ".join(violations))
    return given


_TYPES: Final = {
    "string": (str, "a string"),
    "number": ((int, float), "a number"),
    "boolean": (bool, "a boolean"),
}


def _violation(rule: Mapping[str, object], value: object) -> str | None:
    kind = cast("str", rule["type"])
    python_type, wording = _TYPES[kind]
    # A Python bool is an int; a JSON boolean is not a number.
    if not isinstance(value, python_type) or (
        kind == "number" and isinstance(value, bool)
    ):
        return wording
    allowed = rule.get("enum")
    if allowed is not None and value not in cast("list[object]", allowed):
        return f"one of {compact_json(allowed)}"
    return None


def _escalation_pair(given: Mapping[str, object]) -> tuple[str | None, str]:
    wanted = given.get("sandbox_permissions")
    justification = given.get("justification")
    if wanted is not None and justification is None:
        raise invalid_args(
            "invalid escalation: sandbox_permissions requires a justification"
        )
    if justification is not None and wanted is None:
        raise invalid_args(
            "invalid escalation: justification is only valid together with "
            "sandbox_permissions"
        )
    if isinstance(justification, str) and not justification.strip():
        raise invalid_args("invalid justification: expected a non-empty sentence")
    if wanted is None:
        return None, ""
    return str(wanted), str(justification)


def _is_positive_finite(value: float) -> bool:
    try:
        return math.isfinite(value) and value > 0
    except OverflowError:
        # An integer no float can hold; in JSON's own terms that is Infinity.
        return False


def _require_encodable(name: str, text: str) -> None:
    # JSON can spell half of a surrogate pair; no argument of a process can hold one.
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid_args(
            f"invalid {name}: it contains a lone surrogate, which cannot be encoded"
        ) from None
