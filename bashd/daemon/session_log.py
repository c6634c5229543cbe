"""The append-only JSONL log of one session.

One event a line: ``bash/sandbox-mode``, ``approval/asked``, ``approval/decided``,
``approval/policy``, ``bash/run``. It lies in the session's output folder, so commands of
the session can read it (``$BASHD_SESSION_JSONL``) and no confined one can write it. What
decides (the mode in force) is kept in memory and in the session's record; the log is
for people and for tools that follow along.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from bashd.daemon.output import OutputDirectory


class SessionLog:
    """Appends events; owns one descriptor."""

    NAME = "session.jsonl"

    def __init__(self, directory: OutputDirectory) -> None:
        self.path = directory.path_of(self.NAME)
        try:
            self._fd = directory.create(self.NAME)
        except FileExistsError:
            self._fd = directory.open(self.NAME)

    def append(self, event: dict[str, Any]) -> None:
        """Write one event with its time. A full disk costs the line, not the call."""
        line = json.dumps({"time": round(time.time(), 3), **event}, ensure_ascii=True)
        if self._fd < 0:
            return  # the session closed before its last line was written
        try:
            os.lseek(self._fd, 0, os.SEEK_END)
            os.write(self._fd, line.encode() + b"\n")
        except OSError:
            return

    def close(self) -> None:
        """Close the file; it goes with its session."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
