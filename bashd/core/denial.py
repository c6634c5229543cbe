"""What a failed command's stderr says about refusals. Pure.

The rule is narrow on purpose: a non-zero exit, and the words that the runner's own
wall produces. An application's "Permission denied" is not a denial under bubblewrap,
whose walls answer EROFS; it counts where Landlock is the wall (EACCES) and where the
line names a path that the policy masks. A kernel record overrules all of this in both
directions. Source: the contract's denial section; errno texts are those of strerror(3)
in the C and English locales.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from bashd.core.confinement import is_below
from bashd.core.model import Denial, Verdict

MAX_DENIALS: Final = 16
"""More would not help a reader; the count of lines is bounded by the tail anyway."""
_READ_ONLY: Final = "read-only file system"
_BUSY: Final = "device or resource busy"
_PERMISSION: Final = "permission denied"
_QUOTED: Final = re.compile(r"['\"‘`“]([^'\"’`”]+)['\"’`”]")
_ABSOLUTE: Final = re.compile(r"(?<![\w.~-])(/[^\s:'\"]+)")
_BEFORE_COLON: Final = re.compile(r"([^\s:]+):\s*$")
_OPERATIONS: Final = (
    ("remove", ("remove", "unlink", "rmdir", "delete")),
    ("create", ("create", "touch", "mkdir", "mknod", "mkfifo", "make")),
    ("rename", ("move", "rename")),
    ("link", ("link",)),
    ("change", ("chmod", "chown", "permissions", "ownership", "times", "attribute")),
    ("execute", ("execute", "exec")),
    ("read", ("open", "read", "list", "access")),
    ("write", ("write", "truncate", "append", "save")),
)


def classify(
    *,
    exit_code: int | None,
    stderr: str,
    runner: str | None,
    masked: Iterable[str] = (),
    protected: Iterable[str] = (),
    cwd: str = "/",
) -> tuple[Verdict, tuple[Denial, ...]]:
    """Judge a settled command by its retained stderr.

    Args:
        exit_code: None for a signal death, which is never a denial by this rule.
        stderr: The retained tail, decoded.
        runner: ``bwrap`` or ``landlock``; None was not confined.
        masked: Canonical masked paths.
        protected: Canonical protected paths.
        cwd: Where the command ran, for relative names.

    Returns:
        ``suspected`` with one denial per telling line, or ``none``.
    """
    if not exit_code or runner is None:
        return Verdict.NONE, ()
    masks, guarded = tuple(masked), tuple(protected)
    found: dict[Denial, None] = {}
    for line in stderr.splitlines():
        denial = _judge(line, runner, masks, guarded, cwd)
        if denial is not None and len(found) < MAX_DENIALS:
            found[denial] = None
    if not found:
        return Verdict.NONE, ()
    return Verdict.SUSPECTED, tuple(found)


def _judge(
    line: str, runner: str, masks: tuple[str, ...], guarded: tuple[str, ...], cwd: str
) -> Denial | None:
    lowered = line.lower()
    for words in (_READ_ONLY, _BUSY, _PERMISSION):
        at = lowered.find(words)
        if at < 0:
            continue
        path = _named_path(line[:at], line, cwd)
        if words == _READ_ONLY:
            counts = runner == "bwrap"
        elif words == _BUSY:
            counts = path is not None and _touches(path, guarded)
        else:
            counts = runner == "landlock" or (
                path is not None and any(is_below(path, mask) for mask in masks)
            )
        if counts:
            return Denial(path, _operation(lowered[:at], words), "stderr")
    return None


def _touches(path: str, guarded: tuple[str, ...]) -> bool:
    return any(is_below(path, one) or is_below(one, path) for one in guarded)


def _named_path(before: str, line: str, cwd: str) -> str | None:
    """Find what the line complains about: a quoted name, the last word before the
    colon, or any absolute path."""
    quoted = _QUOTED.findall(before)
    if quoted:
        return _absolute(quoted[-1], cwd)
    word = _BEFORE_COLON.search(before)
    if word is not None:
        return _absolute(word.group(1), cwd)
    anywhere = _ABSOLUTE.findall(line) or _QUOTED.findall(line)
    return _absolute(anywhere[-1], cwd) if anywhere else None


def _absolute(name: str, cwd: str) -> str:
    name = name.rstrip("/") or "/"
    if name.startswith("/"):
        return name
    return f"{cwd.rstrip('/')}/{name.removeprefix('./')}"


def _operation(lowered: str, words: str) -> str:
    for operation, signs in _OPERATIONS:
        if any(sign in lowered for sign in signs):
            return operation
    return "write" if words == _READ_ONLY else "access"
