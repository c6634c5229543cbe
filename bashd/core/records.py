"""The kernel's audit records about Landlock: from text to values. Pure.

One line of text a record, as the kernel's multicast group delivers it::

    audit(1796034871.145:4): domain=109e527fd blockers=fs.make_reg path="/etc" ino=19
    audit(1796034871.145:4): domain=109e527fd status=allocated pid=11830 comm="bash"
    audit(1796034871.145:4): arch=c000003e syscall=257 ppid=11828 pid=11830 comm="sh"

Records of one event share the number behind the time. What a command chose itself
(paths, program names) is quoted, or in hexadecimal where a quote could be forged, so
a field cannot be smuggled in. Nothing here raises for what is not understood: it is
not a record of ours then.

Source: security/landlock/audit.c, security/lsm_audit.c and kernel/audit.c (Linux 6.15);
numbers from include/uapi/linux/audit.h.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SYSCALL: Final = 1300
CONFIG_CHANGE: Final = 1305
SECCOMP: Final = 1326
LANDLOCK_ACCESS: Final = 1423
LANDLOCK_DOMAIN: Final = 1424
KINDS: Final = (SYSCALL, CONFIG_CHANGE, SECCOMP, LANDLOCK_ACCESS, LANDLOCK_DOMAIN)
"""Record types that say something here; all others need not be delivered."""

EXCLUDE_LIST: Final = 5
"""Number of the filter list whose rules keep whole record types from being logged."""

_HEAD: Final = re.compile(r"audit\((\d{1,18})\.(\d{1,3}):(\d{1,18})\): ?")
_FIELD: Final = re.compile(r'([a-z][a-z_0-9]*)=("[^"]*"|[^\s"]*)(?:\s|$)')
_HEX: Final = re.compile(r"(?:[0-9A-F]{2})+")
_DIGITS: Final = 16
"""Longest number taken: what a 64-bit id has in hexadecimal."""
_MAX_TEXT: Final = 4096
"""Longest path or name kept; the kernel's own bound of a path."""


@dataclass(frozen=True, slots=True)
class Access:
    """One refusal. Source: record 1423."""

    event: int
    domain: int
    blockers: tuple[str, ...]
    """Rights that were missing, such as ``fs.make_reg`` or ``scope.signal``."""
    target: str | None
    """For what is made, removed or renamed, the folder it would have been in; for a
    signal the program; for a socket its name or address. None where nothing is said."""


@dataclass(frozen=True, slots=True)
class DomainMade:
    """Who entered a domain; said once, with the domain's first refusal."""

    event: int
    domain: int
    pid: int
    """Of the process that restricted itself, as the host numbers it."""


@dataclass(frozen=True, slots=True)
class DomainEnded:
    """A domain's last process is gone."""

    event: int
    domain: int
    denials: int
    """Refusals it has had, recorded or not."""


@dataclass(frozen=True, slots=True)
class Call:
    """Who made the system call that an event is about."""

    event: int
    pid: int
    parent: int
    program: str


@dataclass(frozen=True, slots=True)
class LayerAdded:
    """A process put a Landlock layer of its own on, whose refusals are not recorded.

    Said by our seccomp filter, which logs such calls and lets them pass.
    """

    event: int
    pid: int


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """Somebody changed what is recorded."""

    event: int


Record = Access | DomainMade | DomainEnded | Call | LayerAdded | Reconfigured


def parse_record(kind: int, text: str) -> Record | None:
    """Parse one record; None for what is none of ours or not understood.

    Args:
        kind: Its type, a number of linux/audit.h.
        text: Its line, decoded.
    """
    head = _HEAD.match(text)
    parse = _PARSERS.get(kind)
    if head is None or parse is None:
        return None
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(text[head.end() :]):
        # The first of a name counts: the kernel writes its own fields first.
        fields.setdefault(name, value)
    try:
        return parse(int(head[3]), fields)
    except (KeyError, ValueError):
        return None


def event_of(text: str) -> int | None:
    """Return the number of the event a record belongs to, without parsing the rest."""
    head = _HEAD.match(text)
    return None if head is None else int(head[3])


def _access(event: int, fields: Mapping[str, str]) -> Access:
    blockers = tuple(word for word in fields["blockers"].split(",") if word)
    if not blockers:
        raise ValueError("no blockers")
    return Access(event, _hexadecimal(fields["domain"]), blockers, _target(fields))


def _domain(event: int, fields: Mapping[str, str]) -> DomainMade | DomainEnded:
    domain = _hexadecimal(fields["domain"])
    if fields["status"] == "deallocated":
        return DomainEnded(event, domain, _decimal(fields["denials"]))
    if fields["status"] != "allocated":
        raise ValueError("unknown status")
    return DomainMade(event, domain, _decimal(fields["pid"]))


def _call(event: int, fields: Mapping[str, str]) -> Call:
    program = _text(fields.get("comm", "")) or ""
    return Call(event, _decimal(fields["pid"]), _decimal(fields["ppid"]), program)


def _layer_added(event: int, fields: Mapping[str, str]) -> LayerAdded:
    if _decimal(fields["syscall"]) != _LANDLOCK_RESTRICT_SELF:
        raise ValueError("another system call")
    return LayerAdded(event, _decimal(fields["pid"]))


_LANDLOCK_RESTRICT_SELF: Final = 446
"""The same on every architecture. Source: asm-generic/unistd.h."""


def _reconfigured(event: int, _: Mapping[str, str]) -> Reconfigured:
    return Reconfigured(event)


_PARSERS: Final = {
    SYSCALL: _call,
    CONFIG_CHANGE: _reconfigured,
    SECCOMP: _layer_added,
    LANDLOCK_ACCESS: _access,
    LANDLOCK_DOMAIN: _domain,
}


def _target(fields: Mapping[str, str]) -> str | None:
    for name in ("path", "name", "ocomm"):
        if name in fields:
            return _text(fields[name])
    for address, port in (("daddr", "dest"), ("saddr", "src")):
        if port in fields:
            return f"{fields.get(address, '')}:{fields[port]}"
    return None


def _text(value: str) -> str | None:
    """Return a string that the kernel took from outside; None where it had none."""
    if value.startswith('"'):
        return value.strip('"')[:_MAX_TEXT]
    if _HEX.fullmatch(value):
        raw = bytes.fromhex(value)[:_MAX_TEXT]
        if raw.startswith(b"\0"):
            # An abstract socket, spelled as ss(8) and lsof(8) do.
            return "@" + raw[1:].decode(errors="replace").rstrip("\0")
        return raw.decode(errors="replace")
    return None


def _decimal(value: str) -> int:
    if not value.isascii() or not value.isdecimal() or len(value) > _DIGITS:
        raise ValueError(f"not a number: {value[:_DIGITS]!r}")
    return int(value)


def _hexadecimal(value: str) -> int:
    if not value or len(value) > _DIGITS:
        raise ValueError("not an id")
    return int(value, 16)


# -- what a refusal was about ---------------------------------------------------------

_SINGLE: Final = {
    "fs.execute": "execute",
    "fs.write_file": "write",
    "fs.truncate": "write",
    "fs.ioctl_dev": "control",
    "fs.change_topology": "mount",
    "fs.refer": "link",
    "net.bind_tcp": "bind",
    "net.connect_tcp": "connect",
    "scope.abstract_unix_socket": "connect",
    "scope.signal": "signal",
    "ptrace": "trace",
}
"""Blocker to operation, those that count more first."""


def operation_of(blockers: tuple[str, ...]) -> str:
    """Return what a process wanted to do, in one word of `Denial.operation`."""
    makes = any(word.startswith("fs.make_") for word in blockers)
    removes = any(word.startswith("fs.remove_") for word in blockers)
    if (makes and removes) or ((makes or removes) and "fs.refer" in blockers):
        # Or a hard link's new name, for which the same rights are asked.
        return "rename"
    if makes:
        return "create"
    if removes:
        return "remove"
    for blocker, operation in _SINGLE.items():
        if blocker in blockers:
            return operation
    return "read"


def is_noise(access: Access) -> bool:
    """Whether a refusal says nothing about what a command wanted.

    bash opens /dev/tty at every start, to see whether there is a terminal. And whoever
    opens /dev/stderr as a shell's ``>`` does, to be made if it is not there, has the
    kernel ask before it has looked whether /proc/PID/fd holds that name; it does, and
    the answer is thrown away. Nobody can make a file in /proc anyway.
    """
    if access.target == "/dev/tty":
        harmless = ("fs.read_file", "fs.write_file", "fs.ioctl_dev")
        return all(word in harmless for word in access.blockers)
    folder = access.target or ""
    return access.blockers == ("fs.make_reg",) and folder.startswith("/proc/")


def names_folder(blockers: tuple[str, ...]) -> bool:
    """Whether a refusal's target is the folder of what was meant, not the thing."""
    return any(
        word.startswith(("fs.make_", "fs.remove_")) or word == "fs.refer"
        for word in blockers
    )
