"""What a git configuration makes git run, and whom it makes git trust. Pure.

The parser takes whatever git takes and never stops at what git would refuse: a line it
cannot read is left out, because git does not start at all with such a file. Source:
git-config(1), "CONFIGURATION FILE", and config.c of git 2.39.
"""

from __future__ import annotations

import functools
from typing import Final

Pair = tuple[str, str]
"""``section.key`` or ``section.sub.key`` (section and key in lower case), and value."""

_ESCAPES: Final = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"'}
_BOOLEANS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0", ""})

_RUNS: Final[frozenset[str]] = frozenset({
    "core.fsmonitor", "core.hookspath", "core.editor", "core.pager", "core.sshcommand",
    "core.gitproxy", "core.askpass", "core.alternaterefscommand", "sequence.editor",
    "diff.external", "interactive.difffilter", "credential.helper", "gpg.program",
    "init.templatedir", "uploadpack.packobjectshook", "include.path", "imap.tunnel",
    "instaweb.httpd", "instaweb.browser", "web.browser", "merge.tool", "diff.tool",
    "sendemail.smtpserver", "sendemail.sendmailcmd", "sendemail.tocmd",
    "sendemail.cccmd", "sendemail.headercmd", "lfs.standalonetransferagent",
})  # fmt: skip
_RUNS_BY_SUBSECTION: Final[frozenset[tuple[str, str]]] = frozenset({
    ("diff", "command"), ("diff", "textconv"), ("merge", "driver"),
    ("filter", "clean"), ("filter", "smudge"), ("filter", "process"),
    ("mergetool", "cmd"), ("mergetool", "path"), ("difftool", "cmd"),
    ("difftool", "path"), ("credential", "helper"), ("gpg", "program"),
    ("gpg", "defaultkeycommand"), ("browser", "cmd"), ("browser", "path"),
    ("man", "cmd"), ("man", "path"), ("remote", "uploadpack"),
    ("remote", "receivepack"), ("remote", "vcs"), ("trailer", "command"),
    ("trailer", "cmd"), ("tar", "command"), ("guitool", "cmd"), ("hook", "command"),
    ("includeif", "path"), ("sendemail", "sendmailcmd"), ("sendemail", "tocmd"),
    ("sendemail", "cccmd"), ("sendemail", "headercmd"), ("sendemail", "smtpserver"),
    ("lfs", "path"), ("lfs", "clean"), ("lfs", "smudge"),
})  # fmt: skip
_RUNS_WITH_BANG: Final = frozenset({"alias", "submodule"})
"""Values of these sections are commands of the shell when they start with ``!``."""
_EXTERNAL: Final = "ext::"
"""Beginning of an address that names a command. Source: git-remote-ext(1)."""
_REDIRECTS: Final[frozenset[str]] = frozenset({
    "core.worktree", "http.proxy", "http.sslverify", "http.sslcainfo",
    "remote.pushdefault", "protocol.allow",
})  # fmt: skip
_REDIRECTS_BY_SUBSECTION: Final[frozenset[tuple[str, str]]] = frozenset({
    ("remote", "url"), ("remote", "pushurl"), ("remote", "proxy"),
    ("url", "insteadof"), ("url", "pushinsteadof"), ("http", "proxy"),
    ("http", "sslverify"), ("http", "sslcainfo"), ("protocol", "allow"),
})  # fmt: skip


@functools.lru_cache(maxsize=64)
def parse(text: str) -> tuple[Pair, ...]:
    """Return every key of a configuration file with its value, in order.

    A key without ``=`` has the value ``true``.
    """
    return tuple(_Parser(text.removeprefix("\ufeff")).pairs())


def runs_code(pair: Pair) -> bool:
    """Whether git may run something because of this key."""
    name, value = pair
    section, sub, key = split(name)
    if name == "core.fsmonitor" or section == "pager":
        # As a boolean it is git's own watcher, or whether to page at all.
        return value.lower() not in _BOOLEANS
    if section in _RUNS_WITH_BANG:
        return value.lstrip().startswith("!")
    if section in ("url", "remote") and (sub + "\0" + value).count(_EXTERNAL):
        return True
    return (section, key) in _RUNS_BY_SUBSECTION if sub else name in _RUNS


def redirects(pair: Pair) -> bool:
    """Whether this key says where git sends to, fetches from or whom it believes."""
    name, _ = pair
    section, sub, key = split(name)
    if not sub:
        return name in _REDIRECTS
    return (section, key) in _REDIRECTS_BY_SUBSECTION


def effects(text: str) -> frozenset[Pair]:
    """Return the keys of a file that run code or redirect; the rest only describes."""
    return frozenset(p for p in parse(text) if runs_code(p) or redirects(p))


def code_keys(text: str) -> tuple[str, ...]:
    """Return the names of the keys that run code, sorted."""
    return tuple(sorted({pair[0] for pair in parse(text) if runs_code(pair)}))


def value_of(text: str, name: str) -> str | None:
    """Return the last value of a key, as git reads it; None when it is not there."""
    found: str | None = None
    for key, value in parse(text):
        if key == name:
            found = value
    return found


def split(name: str) -> tuple[str, str, str]:
    """Split ``section.sub.key``; the subsection may hold dots, or be missing."""
    section, _, rest = name.partition(".")
    sub, _, key = rest.rpartition(".")
    return section, sub, key


def gitdir_of(text: str) -> str | None:
    """Return the path a ``.git`` file names; None where it names none.

    Source: gitrepository-layout(5).
    """
    line = text.split("\n", 1)[0].rstrip("\r")
    if not line.startswith("gitdir:"):
        return None
    path = line.removeprefix("gitdir:").strip(" ")
    return path if path and "\0" not in path else None


class _Parser:
    """One pass over the text; what git would refuse is skipped to the line's end."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._section = ""

    def pairs(self) -> list[Pair]:
        found: list[Pair] = []
        while (sign := self._next()) is not None:
            if sign in "#;":
                self._skip_line()
            elif sign == "[":
                self._section = self._read_section()
            elif sign.isalpha() and sign.isascii():
                pair = self._read_key(sign)
                if pair is not None:
                    found.append(pair)
        return found

    def _next(self) -> str | None:
        if self._at >= len(self._text):
            return None
        self._at += 1
        return self._text[self._at - 1]

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end + 1

    def _read_section(self) -> str:
        name = ""
        while (sign := self._next()) is not None:
            if sign == "]":
                return name.lower()
            if sign.isspace():
                return self._read_subsection(name.lower())
            if not (sign.isalnum() or sign in "-."):
                break
            name += sign
        self._skip_line()
        return ""

    def _read_subsection(self, section: str) -> str:
        while self._peek() and self._peek() in " \t":
            self._at += 1
        sub = ""
        if self._next() == '"':
            while (sign := self._next()) not in (None, "\n"):
                if sign == '"':
                    return f"{section}.{sub}" if self._next() == "]" else ""
                sub += (self._next() or "") if sign == "\\" else str(sign)
        self._skip_line()
        return ""

    def _read_key(self, first: str) -> Pair | None:
        name = first
        while (
            (sign := self._peek())
            and sign.isascii()
            and (sign.isalnum() or sign == "-")
        ):
            name += sign
            self._at += 1
        while self._peek() and self._peek() in " \t":
            self._at += 1
        value = "true"
        sign = self._next()
        if sign == "=":
            read = self._read_value()
            if read is None:
                return None
            value = read
        elif sign not in ("\n", None):
            if sign in ("#", ";"):
                self._skip_line()
            else:
                self._skip_line()
                return None
        # Git takes keys ahead of any section, too; no program asks for them.
        prefix = f"{self._section}." if self._section else ""
        return prefix + name.lower(), value

    def _read_value(self) -> str | None:
        # Spaces inside count once something follows them; git makes them all blanks.
        value, spaces, quoted = "", 0, False
        while (sign := self._next()) not in (None, "\n"):
            sign = str(sign)
            if not quoted and sign in "#;":
                self._skip_line()
                break
            if not quoted and sign.isspace():
                spaces += bool(value)
                continue
            value, spaces = value + " " * spaces, 0
            if sign == "\\":
                escaped = self._next()
                if escaped in (None, "\n"):
                    continue
                if escaped not in _ESCAPES:
                    self._skip_line()
                    return None
                value += _ESCAPES[escaped]
            elif sign == '"':
                quoted = not quoted
            else:
                value += sign
        return value
