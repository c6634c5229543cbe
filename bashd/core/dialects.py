"""How programs say that the kernel refused them a file: path and operation. Pure.

`complaints` finds the lines of a stderr that hold one of three errno texts and reads
out what each complains about, for the dialects of bash, coreutils, Python, git, node
and npm, cargo, Go, Ruby, tar and compilers. Whether a complaint is a denial of ours is
`bashd.core.denial`'s business.

Source: strerror(3) in the C and English locales; the programs' own messages.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Errno(StrEnum):
    """The errno texts that a wall of ours produces, in lower case."""

    READ_ONLY = "read-only file system"
    BUSY = "device or resource busy"
    PERMISSION = "permission denied"


@dataclass(frozen=True, slots=True)
class Complaint:
    """One line that says that something was refused."""

    errno: Errno
    path: str | None
    """Absolute and lexically normal; None where none is named."""
    operation: str | None
    """``create``, ``write``, ``remove``…; None where the line does not tell."""
    by_shell: bool
    """bash itself says so, of a redirection or of a command it could not execute."""


_ANY: Final = re.compile(
    "|".join(re.escape(word.value) for word in Errno), re.IGNORECASE
)
_LONGEST_LINE: Final = 4096
"""A longer line is a program's data, not its message; parsing stays linear."""

# Refusals by somebody else, in the same words: an ssh server, a database, a remote.
_FOREIGN_AFTER: Final = re.compile(
    r" \((?:publickey|password|keyboard|gssapi|hostbased|none)"
    r"|, please try again"
    r"| for (?:table|schema|relation|sequence|database|function|view|column|type"
    r"|language|foreign|user)\b"
    r"| to (?:create|alter|drop|set|grant|terminate|start)\b",
    re.IGNORECASE,
)
_FOREIGN_BEFORE: Final = re.compile(r"^\s*remote: ")

_SHELL: Final = re.compile(r"^(?:\S*/)?(?:ba|da)?sh: (?:line \d+: )?|^\S+: line \d+: ")
_PHRASE: Final = re.compile(
    r"^(?:can(?:no|')t|could(?: no|n')t|unable|failed)\b", re.IGNORECASE
)
_QUOTED: Final = re.compile(
    r"'(?:[^']|'\\'')+'(?!\w)|\"[^\"]+\"|\u2018[^\u2019]+\u2019|`[^`']+[`']"
    r"|\u201c[^\u201d]+\u201d"
)
_CONTRACTION: Final = re.compile(r"\b(?:ca|could)n't\b", re.IGNORECASE)
"""Its apostrophe is no quote."""
_ARROW: Final = re.compile(r"['\u2019\"] [-=]> ['\u2018\"]")
_NODE: Final = re.compile(r"^, (\w+) '([^']+)'(?: -> '([^']+)')?")
_PYTHON: Final = re.compile(r"^: (['\"])(.+?)\1(?: -> (['\"])(.+?)\3)?$")
_RUBY: Final = re.compile(r"^ @ (\w+) - \(?(.+?)\)?(?: \(Errno::\w+\))?$")
_UNIX_URL: Final = re.compile(r"unix://(/[^\s:'\"]+)")
_SYSTEM_CALL: Final = re.compile(
    r"^(open|openat|mkdir|mkdirat|rename|renameat|remove|unlink|unlinkat|rmdir|link"
    r"|symlink|chmod|chown|chtimes|truncate|write|fork/exec|exec|readlink|readdirent"
    r"|lstat|stat|connect|bind) (\S.*)$"
)
_TAR: Final = re.compile(r"^Cannot (?:open|mkdir|unlink|change|utime|create|hard link)")
_PYTHON_ERROR: Final = re.compile(r"^\w*Error: \[Errno \d+\] ")
_RUST: Final = re.compile(r"\(os error \d+\)")
_ABSOLUTE: Final = re.compile(r"(?<![\w.~-])(/[^\s:'\"`\u2018\u2019\u201c\u201d()]+)")

_OF_CALL: Final = {
    "mkdir": "create", "mkdirat": "create", "mkdtemp": "create", "copyfile": "create",
    "symlink": "create", "mknod": "create", "dir_s_mkdir": "create",
    "unlink": "remove", "unlinkat": "remove", "rmdir": "remove", "rm": "remove",
    "remove": "remove", "dir_s_rmdir": "remove", "apply2files": "remove",
    "rename": "rename", "renameat": "rename", "rb_file_s_rename": "rename",
    "link": "link", "chmod": "change", "fchmod": "change", "chown": "change",
    "lchown": "change", "utime": "change", "utimes": "change", "chtimes": "change",
    "truncate": "write", "ftruncate": "write", "write": "write",
    "scandir": "read", "readdir": "read", "readdirent": "read", "readlink": "read",
    "stat": "read", "lstat": "read", "opendir": "read", "dir_initialize": "read",
    "exec": "execute", "fork/exec": "execute", "spawn": "execute",
    "connect": "connect", "bind": "bind",
}  # fmt: skip
"""Name of a call to operation. ``open`` is left out: it may be for anything."""

_SIGNS: Final = (
    ("read", r"for reading|open(?:ing)? (?:the )?directory|cannot stat|list|scan|read"),
    # mv also says that it cannot remove its target.
    ("rename", r"move|rename"),
    ("remove", r"remove|unlink|rmdir|delete"),
    ("link", r"hard link"),
    ("create", r"create|creating|touch|mkdir|mknod|mkfifo|mkstemp|make|temporary|lock"),
    ("change", r"chmod|chown|permissions|ownership|times|attributes?|mode"),
    ("execute", r"execute|exec"),
    ("write", r"write|writing|truncate|append|save|output|dependency"),
)
_SIGNS_OF: Final = tuple(
    (operation, re.compile(rf"\b(?:{signs})\b")) for operation, signs in _SIGNS
)
"""First match wins. Only the program's own words are looked at, never a path."""

_READERS: Final = frozenset(
    {
        "cat", "head", "tail", "less", "more", "nl", "tac", "strings", "od", "xxd",
        "grep", "egrep", "fgrep", "rg", "ls", "dir", "tree", "find", "wc", "diff", "cmp",
        "file", "stat", "du", "md5sum", "sha1sum", "sha256sum", "sort", "uniq", "cut",
    }
)  # fmt: skip
"""Programs that only look; what they are refused is a look."""

_PYTHON_CODE: Final = (
    (
        "create",
        re.compile(r"\bmkdir\(|\bmakedirs\(|\bmkfifo\(|\bsymlink\(|\bmkdtemp\("),
    ),
    ("remove", re.compile(r"\bremove\(|\bunlink\(|\brmdir\(|\brmtree\(")),
    ("rename", re.compile(r"\brename\(|\breplace\(|\bmove\(")),
    ("change", re.compile(r"\bchmod\(|\bchown\(|\butime\(")),
    ("write", re.compile(r"\bopen\(.*['\"][rbt]*[wax+]|\bwrite_\w+\(|\btouch\(")),
    ("read", re.compile(r"\blistdir\(|\bscandir\(|\bread_\w+\(|\biterdir\(")),
)
_LOOK_BACK: Final = 4
"""Lines above a message that may belong to it: a traceback's code, cargo's cause."""


def is_complaining(stderr: str) -> bool:
    """Whether *stderr* holds one of the errno texts at all; this takes no time."""
    lowered = stderr.lower()
    return any(errno.value in lowered for errno in Errno)


def complaints(stderr: str, cwd: str) -> Iterator[Complaint]:
    """Yield what the lines of *stderr* complain about.

    Args:
        stderr: Decoded.
        cwd: Where the command ran, for relative names.
    """
    if not is_complaining(stderr):
        return
    lines = stderr.splitlines()
    for number, line in enumerate(lines):
        found = _ANY.search(line) if len(line) <= _LONGEST_LINE else None
        if found is None or _is_foreign(line, found):
            continue
        above = lines[max(number - _LOOK_BACK, 0) : number]
        yield _read(line, found, above, cwd)


def _is_foreign(line: str, found: re.Match[str]) -> bool:
    return bool(
        _FOREIGN_BEFORE.match(line)
        or (
            found[0].lower() == Errno.PERMISSION.value
            and _FOREIGN_AFTER.match(line, found.end())
        )
    )


def _read(line: str, found: re.Match[str], above: Sequence[str], cwd: str) -> Complaint:
    errno = Errno(found[0].lower())
    before, after = line[: found.start()], line[found.end() :]
    shell = _SHELL.match(before)
    named = _named_after(after) or _named_before(before, in_shell=shell is not None)
    path, operation = named or (None, None)
    said = before
    if path is None:
        path, said = _named_elsewhere(line, above) or (None, before)
    if operation is None:
        operation = _operation(said, path)
    if operation is None and _PYTHON_ERROR.match(line):
        operation = _operation_of_code(above)
    if errno is Errno.READ_ONLY and operation in (None, "read"):
        # Looking is never refused by a file system that is read-only.
        operation = "write"
    return Complaint(errno, absolute(path, cwd), operation, shell is not None)


def _named_after(after: str) -> tuple[str, str | None] | None:
    """Read the dialects that put the name behind the errno text."""
    if node := _NODE.match(after):
        return node[3] or node[2], _OF_CALL.get(node[1])
    if python := _PYTHON.match(after.rstrip()):
        return python[4] or python[2], None
    if ruby := _RUBY.match(after.rstrip()):
        return ruby[2].rpartition(", ")[2], _OF_CALL.get(ruby[1])
    if url := _UNIX_URL.search(after):
        return url[1], "connect"
    return None


def _named_before(before: str, *, in_shell: bool) -> tuple[str, str | None] | None:
    """Read the dialects that put the name before it."""
    said = _CONTRACTION.sub("cannot", before.rstrip(" :("))
    quoted = [match[0][1:-1] for match in _QUOTED.finditer(said)]
    if quoted:
        name = quoted[0] if _ARROW.search(said) else quoted[-1]
        return name.replace("'\\''", "'"), None
    *earlier, last = said.split(": ")
    if call := _SYSTEM_CALL.match(last):
        return call[2].split(" ")[-1], _OF_CALL.get(call[1])
    if _TAR.match(last):
        return (earlier[-1], None) if len(earlier) > 1 else None
    if _PHRASE.match(last) or not earlier:
        return _last_path(last)
    if " " in last and not last.startswith(("/", "./", "../", "~")) and not in_shell:
        return _last_path(last)
    return (last, None) if last else None


def _last_path(phrase: str) -> tuple[str, str | None] | None:
    word = phrase.rpartition(" ")[2]
    return (word, None) if "/" in word else None


def _named_elsewhere(line: str, above: Sequence[str]) -> tuple[str, str] | None:
    """Return a path that some other place of the message names, and the words there."""
    if _RUST.search(line):
        # "failed to create directory `/x`", blank, "Caused by:", then the errno text.
        for earlier in reversed(above):
            if name := _QUOTED.search(earlier):
                return name[0][1:-1], earlier
            if path := _ABSOLUTE.findall(earlier):
                return path[-1], earlier
        return None
    anywhere = _ABSOLUTE.findall(line)
    return (anywhere[-1], line) if anywhere else None


def _operation(said: str, path: str | None) -> str | None:
    words = _QUOTED.sub(" ", _CONTRACTION.sub("cannot", said))
    if path is not None:
        words = re.sub(rf"(?<!\S){re.escape(path)}(?!\S)", " ", words)
    program, _, phrase = words.lower().partition(": ")
    # What it says first: touch may also be setting times.
    for text in (phrase, program):
        for operation, signs in _SIGNS_OF:
            if signs.search(text):
                return operation
    return "read" if posixpath.basename(program.strip(" :")) in _READERS else None


def _operation_of_code(above: Sequence[str]) -> str | None:
    """Read the code that failed from a traceback, where the innermost is last."""
    for earlier in reversed(above):
        for operation, code in _PYTHON_CODE:
            if code.search(earlier):
                return operation
    return None


def absolute(name: str | None, cwd: str) -> str | None:
    """Return a name as an absolute path, without ``.`` and ``..``, links not followed."""
    if not name or "\0" in name:
        return None
    joined = name if name.startswith("/") else f"{cwd}/{name}"
    path = posixpath.normpath(joined)
    # POSIX keeps two leading slashes; Linux knows no such places.
    return path.replace("//", "/", 1) if path.startswith("//") else path
