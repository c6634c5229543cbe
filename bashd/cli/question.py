"""One question of the daemon's queue as people read it, and the words of its answers."""

from __future__ import annotations

import time
from typing import Any, Final

from bashd.cli.table import duration
from bashd.cli.terminal import visible_line
from bashd.tools.question import question_text

ALLOWED_ONCE: Final = "allowed-once"
REJECTED: Final = "rejected"


def question_block(info: dict[str, Any]) -> str:
    """Return one question as people read it, with nothing unprintable in it."""
    age = duration(max(time.time() - info["asked_at"], 0.0))
    head = f"[{info['approval_id']}] asked {age} ago by session {info['session_id']}"
    text = question_text(
        info["command"],
        workdir=info["workdir"],
        mode=info["mode"],
        reason=info["reason"],
    )
    return f"{visible_line(head)}\n{text}"
