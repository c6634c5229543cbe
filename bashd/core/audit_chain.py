"""The hash chain of the audit log: sealing a line, and finding what was done to one. Pure.

Each line is a JSON object that begins with its number and the hash of the line before,
and ends with its own hash, taken over all that stands before it::

    {"seq":7,"prev":"9f2c…","time":…,"event":"run",…,"hash":"41d0…"}

An altered line no longer has its hash; a removed or moved one leaves a number and a
hash that do not follow. What a chain alone cannot show is that its end was cut off: so
the number and hash of the last line stand in a file of their own (the head), and under
systemd in the journal as well. Somebody who may write to all of these can make a new
chain; against that helps only a copy elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

GENESIS: Final = "0" * 64
"""``prev`` of a log's very first line."""

_TAIL: Final = re.compile(rb',"hash":"([0-9a-f]{64})"\}\Z')


@dataclass(frozen=True, slots=True)
class Link:
    """The end of a chain: number and hash of its last line."""

    number: int = 0
    digest: str = GENESIS


def seal(entry: Mapping[str, Any], after: Link) -> tuple[bytes, Link]:
    """Return an entry as a line of the chain, without its newline, and the new end.

    Args:
        entry: JSON values; ``seq``, ``prev`` and ``hash`` are the chain's own.
        after: The end so far.
    """
    number = after.number + 1
    body = json.dumps(
        {"seq": number, "prev": after.digest, **entry},
        ensure_ascii=True,
        separators=(",", ":"),
    ).encode()
    digest = hashlib.sha256(body).hexdigest()
    return body[:-1] + f',"hash":"{digest}"}}'.encode(), Link(number, digest)


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is what it was when it was written."""

    link: Link
    previous: str
    entry: dict[str, Any]


def open_line(raw: bytes) -> Line | None:
    """Read a line of the log; None when it is none, or was altered."""
    tail = _TAIL.search(raw)
    if tail is None:
        return None
    body = raw[: tail.start()] + b"}"
    digest = hashlib.sha256(body).hexdigest()
    if digest.encode() != tail[1]:
        return None
    try:
        entry = json.loads(body)
    except ValueError:
        return None
    if not isinstance(entry, dict):
        return None
    entry = cast("dict[str, Any]", entry)
    number, previous = entry.get("seq"), entry.get("prev")
    if not isinstance(number, int) or not isinstance(previous, str):
        return None
    return Line(Link(number, digest), previous, entry)


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a log from outside of it."""

    first: int
    """Number of the oldest line that must still be there."""
    last: Link

    def text(self) -> str:
        """Return it as the head file has it."""
        fields = {
            "first": self.first,
            "seq": self.last.number,
            "hash": self.last.digest,
        }
        return json.dumps(fields) + "\n"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read a head file.

        Raises:
            ValueError: It is none.
        """
        try:
            found: Any = json.loads(text)
            first, number, digest = (found[key] for key in ("first", "seq", "hash"))
        except (KeyError, TypeError, ValueError):
            raise ValueError("not a head file") from None
        if type(first) is not int or type(number) is not int or type(digest) is not str:
            raise ValueError("not a head file")
        return cls(first, Link(number, digest))


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that was done to the log."""

    file: str
    line: int
    """Counted from 1; 0 for the file as a whole."""
    what: str


@dataclass(slots=True)
class Verdict:
    """What a look at a whole log came to."""

    problems: list[Problem]
    lines: int = 0
    first: int = 0
    last: Link | None = None


def verify(files: Iterable[tuple[str, Iterable[bytes]]], head: Head | None) -> Verdict:
    """Check a log from its oldest line to its newest.

    Args:
        files: Name and lines (without newlines) of each file, oldest first.
        head: What the head file says; None where there is none.
    """
    verdict = Verdict([])
    problems = verdict.problems
    at_head = False
    name = ""
    for name, lines in files:
        for number, raw in enumerate(lines, 1):
            verdict.lines += 1
            line = open_line(raw)
            if line is None:
                problems.append(Problem(name, number, "altered, or no line of the log"))
                # What follows it can still be checked against its number.
                verdict.last = _after_broken(verdict.last)
                continue
            if not verdict.first:
                verdict.first = line.link.number
            else:
                what = _gap(verdict.last, line)
                if what:
                    problems.append(Problem(name, number, what))
            verdict.last = line.link
            at_head = at_head or (head is not None and line.link == head.last)
    problems.extend(_against_head(verdict, head, name, found=at_head))
    return verdict


_UNKNOWN: Final = ""


def _after_broken(last: Link | None) -> Link | None:
    return None if last is None else Link(last.number + 1, _UNKNOWN)


def _gap(last: Link | None, line: Line) -> str:
    """Say how a line does not follow the one before; empty when it does."""
    if last is None:
        return ""
    missing = line.link.number - last.number - 1
    if missing > 0:
        lines = "line is" if missing == 1 else "lines are"
        return f"{missing} {lines} missing before it"
    if missing < 0:
        return "moved, or written twice: its number is not higher than the one before"
    if last.digest not in (_UNKNOWN, line.previous):
        return "the line before it is not the one that was there"
    return ""


def _against_head(
    verdict: Verdict, head: Head | None, name: str, *, found: bool
) -> Iterator[Problem]:
    if head is None:
        yield Problem(name, 0, "there is no head file, so its end cannot be checked")
        return
    if verdict.first > head.first:
        yield Problem(
            name, 0, f"its oldest lines are missing: it must begin with {head.first}"
        )
    last = verdict.last.number if verdict.last else 0
    if last < head.last.number:
        missing = head.last.number - last
        lines = "line is" if missing == 1 else "lines are"
        yield Problem(name, 0, f"its last {missing} {lines} missing")
    elif not found and head.last.number:
        yield Problem(name, 0, f"line {head.last.number} is not the one the head names")
