"""How a user interface may draw a call: pure, replayable, never raising.

A card is worked out from what a log keeps (the arguments and the text), so an old
session draws like a live one. Arguments or content of another shape give None, and
the interface falls back to whatever it does for tools it does not know.

The exit status is parsed back from the last line. A program whose own last line
equals a marker is misread; that costs a wrong badge and nothing else, since facts
travel beside the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

from bashd.tools.schemas import BASH, BASH_KILL, BASH_OUTPUT

Card = dict[str, object]
"""JSON-ready; the key ``card`` says ``terminal`` or ``generic``."""

_SIGNAL_LINE: Final = re.compile(r"\n\[killed by signal: ([^\]\n]+)\]\Z")
_EXIT_LINE: Final = re.compile(r"\n\[exit code: ([0-9]{1,10})\]\Z")
_TASK_TITLES: Final = {
    BASH_OUTPUT: "Read output from background task",
    BASH_KILL: "Kill background task",
}


def present_call(name: str, args: object) -> Card | None:
    """Return the card of a call, or None for arguments of another shape."""
    if name in _TASK_TITLES:
        task_id = _field(args, "task_id")
        if not isinstance(task_id, str):
            return None
        title = f"{_TASK_TITLES[name]} {task_id}"
        return {
            "card": "generic",
            "title": title,
            "kind": "execute",
            "rawInput": task_id,
        }
    if name != BASH or not _is_bash_call(args):
        return None
    command, description = _field(args, "command"), _field(args, "description")
    if _field(args, "run_in_background"):
        return {
            "card": "generic",
            "title": command,
            "kind": "execute",
            "rawInput": command,
            "content": [{"type": "text", "text": description}],
        }
    card: Card = {"card": "terminal", "title": command, "description": description}
    workdir = _field(args, "workdir")
    if workdir is not None:
        card["cwd"] = workdir
    return card


def present_result(
    name: str,
    args: object,
    content: object,
    *,
    is_error: bool = False,
    detached: bool = False,
) -> Card | None:
    """Return the card of a result, or None where there is nothing to draw.

    Args:
        name: The tool.
        args: The arguments of the call.
        content: The result's content blocks, without any notice that follows them.
        is_error: The result's error flag.
        detached: The command went on in the background instead of settling.
    """
    text = _only_text(content)
    if name != BASH or text is None or not _is_bash_call(args):
        return None
    if is_error or detached or _field(args, "run_in_background"):
        fenced = "```console\n" + text.rstrip("\n") + "\n```"
        return {"card": "generic", "content": [{"type": "text", "text": fenced}]}
    return {"card": "terminal", "output": text, **_exit_of(text)}


def _exit_of(text: str) -> Card:
    killed = _SIGNAL_LINE.search(text)
    if killed:
        return {"signal": killed.group(1)}
    exited = _EXIT_LINE.search(text)
    return {"exitCode": int(exited.group(1)) if exited else 0}


def _is_bash_call(args: object) -> bool:
    return (
        isinstance(_field(args, "command"), str)
        and isinstance(_field(args, "description"), str)
        and isinstance(_field(args, "workdir"), str | None)
        and isinstance(_field(args, "run_in_background"), bool | None)
    )


def _field(args: object, key: str) -> object:
    if not isinstance(args, Mapping):
        return None
    return cast("Mapping[str, object]", args).get(key)


def _only_text(content: object) -> str | None:
    if not isinstance(content, Sequence) or isinstance(content, str | bytes):
        return None
    blocks = cast("Sequence[object]", content)
    if len(blocks) != 1 or _field(blocks[0], "type") != "text":
        return None
    text = _field(blocks[0], "text")
    return text if isinstance(text, str) else None
