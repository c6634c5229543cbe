"""Marks on what a test session makes, so that another one can tell whose it is.

A killed session cannot clean up. What it made carries its pid and start time, which
together name a process for good, so a later session may remove it without touching
what a session beside it is using.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

_NEW_S = 600
"""Seconds; between its making and its first process there are milliseconds."""
_MARK = re.compile(r"(\d+)t(\d+)")


def session_mark() -> str:
    """Return the mark of this session: letters and digits only."""
    return f"{os.getpid()}t{start_tick(os.getpid())}"


def is_of_live_session(mark: str) -> bool:
    """Whether the session that left *mark* is running; true for what is no mark."""
    found = _MARK.fullmatch(mark)
    return found is None or start_tick(int(found[1])) == int(found[2])


def start_tick(pid: int) -> int | None:
    """Return the start time of *pid* in ticks since boot; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command's name may hold spaces and brackets; fields are counted after it.
    return int(text.rpartition(")")[2].split()[19])


def remove_folders_of_dead_sessions(parent: Path, prefix: str) -> None:
    """Remove folders of *parent* named ``PREFIX-MARK-…`` whose session is gone."""
    for folder in parent.glob(f"{prefix}-*t*-*"):
        if not is_of_live_session(folder.name.removeprefix(f"{prefix}-").split("-")[0]):
            shutil.rmtree(folder, ignore_errors=True)


def remove_cgroups_of_dead_sessions(parent: Path, prefix: str) -> None:
    """Remove empty cgroups of *parent* named ``PREFIX-MARK-…`` whose session is gone.

    One with processes in it stays, and so does a new one: it may belong to a session
    in another pid namespace, which looks dead from here.
    """
    for folder in parent.glob(f"{prefix}-*t*-*"):
        if is_of_live_session(folder.name.removeprefix(f"{prefix}-").split("-")[0]):
            continue
        with contextlib.suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime < _NEW_S:
                continue
        for path, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                Path(path).rmdir()
