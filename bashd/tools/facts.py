"""The typed facts beside the text, as plain JSON values.

A foreground command has exactly the keys of ``bashd run --json``. Programs read
these and never the text: a command can print any marker, but not a fact.
"""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from bashd.core.model import RunResult, TaskInfo, TaskRead

_TASK_KEYS: Final = (
    "task_id",
    "session_id",
    "command",
    "status",
    "exit_code",
    "signal",
    "started_at",
    "age_s",
    "stdout_bytes",
    "stderr_bytes",
    "cpu_ms",
    "rss_bytes",
    "ports",
    "run_id",
    "sandbox",
)
"""A row of ``bashd ps --json`` plus the run id and the sandbox facts. The owner token
is left out: whoever learns it could claim the session."""


def run_facts(result: RunResult) -> dict[str, object]:
    """Return a foreground command's facts: the keys of ``bashd run --json``."""
    return cast("dict[str, object]", _plain(asdict(result)))


def task_facts(task: TaskInfo) -> dict[str, object]:
    """Return a background task's facts: the keys of one row of ``bashd ps --json``."""
    values = cast("dict[str, object]", _plain(asdict(task)))
    return {key: values[key] for key in _TASK_KEYS}


def read_facts(read: TaskRead) -> dict[str, object]:
    """Return the facts of one `bash_output` call."""
    return {
        "delta": read.delta,
        "lossy": read.lossy,
        "spill_paths": list(read.spill_paths),
        "task": task_facts(read.task),
    }


def error_facts(code: str, message: str) -> dict[str, object]:
    """Return the facts of a call that failed: the shape of ``--json`` errors."""
    return {"error": {"code": code, "message": message}}


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        items = cast("dict[str, object]", value)
        return {key: _plain(item) for key, item in items.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[object]", value)]
    return value
