"""Sessions and tasks to records and back: the shapes of what is on disk.

Only values; `bashd.daemon.records` does the files and `bashd.daemon.restore` decides
what to do with what is found.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from bashd.core.model import Denial, Mode, SandboxFacts, TaskStatus, Verdict
from bashd.daemon.cells import BuiltCell
from bashd.daemon.identity import Identity
from bashd.daemon.output import StoreState
from bashd.daemon.session import Session
from bashd.daemon.task import Task


def session_record(session: Session) -> dict[str, Any]:
    """Return what a new daemon needs to know of a session."""
    identity = session.identity
    return {
        "session_id": session.session_id,
        "identity": asdict(identity),
        "cwd": session.cwd,
        "policy": session.policy,
        "mode_override": None
        if session.mode_override is None
        else str(session.mode_override),
        "approval": session.approval,
        "is_default": session.is_default,
        "anonymous": session.anonymous,
        "job": session.job,
        "job_time": [session.job_time.began, session.job_time.ends],
        "ambient": session.ambient,
        "env_removed": list(session.env_removed),
        "created_at": session.created_at,
        "cells": {
            cell_id: asdict(cell) for cell_id, cell in session.cells.built.items()
        },
    }


def identity_of(record: dict[str, Any]) -> Identity:
    """Return the identity of a session's record."""
    found = dict(record["identity"])
    found["groups"] = tuple(found["groups"])
    return Identity(**found)


def cells_of(record: dict[str, Any]) -> dict[str, BuiltCell]:
    """Return the cells of a session's record.

    The record may be of an older bashd, or of a newer one that was rolled back: what
    it does not say has the field's default, what is not known here is left out.
    """
    return {
        cell_id: BuiltCell(**_known(BuiltCell, found))
        for cell_id, found in record.get("cells", {}).items()
    }


def _known(cls: type[Any], record: dict[str, Any]) -> dict[str, Any]:
    """Return what of a JSON object are fields of the dataclass *cls*."""
    names = {field.name for field in fields(cls)}
    return {name: _as_tuple(record[name]) for name in names & record.keys()}


def _as_tuple(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    # JSON has no tuples.
    return tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def task_record(task: Task) -> dict[str, Any]:
    """Return what a new daemon needs to know of a task."""
    return {
        "task_id": task.task_id,
        "run_id": task.run_id,
        "command": task.command,
        "workdir": task.workdir,
        "owner": task.owner,
        "mode": str(task.mode),
        "foreground": task.foreground,
        "status": str(task.status),
        "exit_code": task.exit_code,
        "signal": task.signal,
        "sandbox": None if task.sandbox is None else _facts_record(task.sandbox),
        "started_at": task.started_at,
        "ended_at": task.ended_at,
        "deadline_at": task.deadline_at,
        "cpu_ms": task.cpu_ms,
        "max_rss_bytes": task.max_rss_bytes,
        "oom_killed": task.oom_killed,
        "cursors": [task.cursor_stdout, task.cursor_stderr],
        "stores": [asdict(task.stdout.state()), asdict(task.stderr.state())],
        "cell_id": task.cell_id,
        "serial": task.serial,
        "settled": task.settled,
        "announced": task.announced,
        "taken": task.taken,
    }


def stores_of(record: dict[str, Any]) -> tuple[StoreState, StoreState]:
    """Return the states of a task's two stores."""
    stdout, stderr = (
        StoreState(**_known(StoreState, state)) for state in record["stores"]
    )
    return stdout, stderr


def restore_result(task: Task, record: dict[str, Any]) -> None:
    """Put a record's state and result into a task."""
    task.foreground = record["foreground"]
    task.status = TaskStatus(record["status"])
    task.exit_code = record["exit_code"]
    task.signal = record["signal"]
    task.sandbox = facts_of(record["sandbox"])
    task.started_at = record["started_at"]
    task.ended_at = record["ended_at"]
    task.deadline_at = record["deadline_at"]
    task.cpu_ms = record["cpu_ms"]
    task.max_rss_bytes = record["max_rss_bytes"]
    task.oom_killed = record.get("oom_killed", False)
    task.cursor_stdout, task.cursor_stderr = record["cursors"]
    task.cell_id, task.serial = record["cell_id"], record["serial"]
    task.announced, task.taken = record["announced"], record["taken"]
    if record["settled"]:
        task.done.set()


def _facts_record(facts: SandboxFacts) -> dict[str, Any]:
    record = asdict(facts)
    record["mode"], record["verdict"] = str(facts.mode), str(facts.verdict)
    return record


def facts_of(record: dict[str, Any] | None) -> SandboxFacts | None:
    """Return the sandbox facts of a record."""
    if record is None:
        return None
    found = _known(SandboxFacts, record)
    found["mode"] = Mode(found["mode"])
    found["verdict"] = Verdict(found["verdict"])
    found["denials"] = tuple(
        Denial(**_known(Denial, denial)) for denial in found["denials"]
    )
    return SandboxFacts(**found)
