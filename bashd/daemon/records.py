"""What of sessions and tasks is on disk, so that a crash of the daemon loses nothing.

One folder a session, beside the state (never in a cell's sight)::

    records/counters.json            last task number of each uid
    records/<session>/session.json   the session, and its cells' secrets
    records/<session>/bash-N.json    one task: command, cursors, stores, result
    records/<session>/runs.jsonl     commands that there is something to explain about

Each JSON file is replaced whole by a rename, so a reader sees the old or the new one;
lines are appended. Nothing is synced: the records have to survive the daemon, not the
machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, cast

_RUNS = "runs.jsonl"
_RUNS_BYTES = 512 * 1024
"""Some hundred commands with their refusals."""
_RUNS_KEPT = 50


class Records:
    """Writes and reads the record files."""

    def __init__(self, state_dir: Path) -> None:
        self._root = state_dir / "records"
        self._root.mkdir(mode=0o700, exist_ok=True)
        self._root.chmod(0o700)

    def save_counters(self, counters: dict[int, int]) -> None:
        """Keep the last task number of each uid."""
        _replace(self._root / "counters.json", {str(k): v for k, v in counters.items()})

    def load_counters(self) -> dict[int, int]:
        """Return the last task number of each uid."""
        found = _read(self._root / "counters.json") or {}
        return {int(uid): int(number) for uid, number in found.items()}

    def save_session(self, session_id: str, record: dict[str, Any]) -> None:
        """Keep a session."""
        folder = self._root / session_id
        folder.mkdir(mode=0o700, exist_ok=True)
        _replace(folder / "session.json", record)

    def save_task(self, session_id: str, task_id: str, record: dict[str, Any]) -> None:
        """Keep a task of a session that is kept."""
        folder = self._root / session_id
        if folder.is_dir():
            _replace(folder / f"{task_id}.json", record)

    def append_run(self, session_id: str, record: dict[str, Any]) -> None:
        """Keep one command of a session that is kept; the oldest go over a bound."""
        path = self._root / session_id / _RUNS
        line = json.dumps(record, ensure_ascii=True) + "\n"
        with contextlib.suppress(OSError):
            if path.exists() and path.stat().st_size > _RUNS_BYTES:
                kept = path.read_text().splitlines(keepends=True)[-_RUNS_KEPT:]
                path.write_text("".join(kept))
            with path.open("a") as file:
                file.write(line)

    def load_runs(self, session_id: str) -> list[dict[str, Any]]:
        """Return the kept commands of a session, oldest first."""
        try:
            lines = (self._root / session_id / _RUNS).read_text().splitlines()
        except OSError:
            return []
        found: list[dict[str, Any]] = []
        for line in lines:
            # The last line of a daemon that was killed may be half a line.
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    found.append(cast("dict[str, Any]", record))
        return found

    def remove_session(self, session_id: str) -> None:
        """Forget a session and its tasks."""
        shutil.rmtree(self._root / session_id, ignore_errors=True)

    def remove_tasks(self, session_id: str) -> None:
        """Forget a session's tasks and keep the session."""
        for path in (self._root / session_id).glob("bash-*.json"):
            with contextlib.suppress(OSError):
                path.unlink()

    def load(self) -> list[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
        """Return every kept session: its id, its record and its tasks' records."""
        found: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = []
        for folder in sorted(self._root.iterdir()):
            record = _read(folder / "session.json") if folder.is_dir() else None
            if record is None:
                continue
            tasks = (_read(path) for path in folder.glob("bash-*.json"))
            found.append((folder.name, record, [t for t in tasks if t is not None]))
        return found


def _replace(path: Path, content: dict[str, Any]) -> None:
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        staging.write_text(json.dumps(content, ensure_ascii=True))
        staging.replace(path)
    except OSError:
        # A full disk: the record stays as it was, the run goes on.
        with contextlib.suppress(OSError):
            staging.unlink()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", content) if isinstance(content, dict) else None
