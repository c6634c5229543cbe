"""Which command each of the kernel's records speaks of.

Theory of operation
    Each command runs in a Landlock domain of its own, made by the spare that became it.
    With the domain's first refusal the kernel says which pid made it, and the spare's
    pid is known from its pidfd: that joins the two for the rest of the domain's life,
    background children included. Refusals by the scopes of the cell's outer layers
    (signals, abstract sockets) carry the domain of the cell; for those, and for
    commands that an earlier daemon started, the process of the system call leads to
    its session, whose leader a spare is.

    The records of one event come in this order: the refusals, who made their domain
    (with a domain's first), the system call. Nothing is kept for ever: of what is not
    joined by then, only the latest is remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from bashd.core.denial import Recorded
from bashd.core.model import Denial
from bashd.core.records import (
    SYSCALL,
    Access,
    Call,
    DomainEnded,
    DomainMade,
    LayerAdded,
    Reconfigured,
    Record,
    event_of,
    is_noise,
    names_folder,
    operation_of,
    parse_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_KEPT: Final = 4096
"""Commands and domains remembered; older ones hear nothing more."""
_EVENTS: Final = 64
"""Events whose system call has not come yet; it follows at once, or never."""
_DISTINCT: Final = 64
"""Different refusals kept of one command; a loop over a tree makes thousands."""
_GENERATIONS: Final = 32
"""Ancestors looked at to find a process's command."""


@dataclass(slots=True, eq=False)
class Watch:
    """What has been said about one command so far. Made by `Watches.add`."""

    pid: int
    """Of its shell, as the host numbers it."""
    covered: bool
    """Its cell's filter logs layers that programs put on themselves."""
    found: dict[tuple[str | None, tuple[str, ...]], str | None] = field(
        default_factory=dict["tuple[str | None, tuple[str, ...]]", "str | None"]
    )
    """Target and missing rights to the program that was refused."""
    counted: int = 0
    """Refusals of its own domain that arrived, whether or not *found* has them."""
    reported: int = 0
    """Refusals of that domain that the kernel counted; known when its last process is
    gone."""
    layered: bool = False
    """A process of it put a layer of its own on."""

    def add(self, access: Access, program: str | None) -> None:
        """Keep a refusal, or the program of one that is kept."""
        key = (access.target, access.blockers)
        if is_noise(access) or (key not in self.found and len(self.found) >= _DISTINCT):
            return
        self.found[key] = program or self.found.get(key)

    def recorded(self, *, complete: bool, lost: bool) -> Recorded:
        """Return what is recorded so far.

        Args:
            complete: Everything that the kernel had to say has been delivered, and it
                had no reason to leave anything out.
            lost: Records were lost since the command began.
        """
        lost = lost or self.reported > self.counted
        refusals = [
            Denial(target, operation_of(blockers), "kernel", program)
            for (target, blockers), program in self.found.items()
        ]
        folders = [t for t, blockers in self.found if t and names_folder(blockers)]
        return Recorded(
            tuple(dict.fromkeys(refusals)),
            frozenset(folders),
            silence_counts=complete and self.covered and not (lost or self.layered),
            lost=lost or self.layered,
        )


class Watches:
    """All watches, and the records that are waiting to be joined to one.

    Args:
        process: Returns parent and session of a live process; None for a dead one.
    """

    def __init__(
        self, process: Callable[[int], tuple[int, int] | None] | None = None
    ) -> None:
        self.changes = 0
        """How often somebody has changed what is recorded."""
        self._process = process or _process
        self._by_pid: OrderedDict[int, Watch] = OrderedDict()
        self._by_domain: OrderedDict[int, Watch] = OrderedDict()
        self._makers: OrderedDict[int, int] = OrderedDict()
        """Domains of others to the pids that made them."""
        self._events: OrderedDict[int, _Event] = OrderedDict()

    def add(self, pid: int, *, covered: bool) -> Watch:
        """Watch a command from before it starts.

        Args:
            pid: Of its shell, as the host numbers it.
            covered: See `Watch.covered`.
        """
        watch = Watch(pid, covered)
        if pid:  # 0: it has been reaped already
            _put(self._by_pid, pid, watch)
        return watch

    def handle(self, kind: int, text: str) -> None:
        """Take in one record, as it arrived."""
        if kind == SYSCALL and event_of(text) not in self._events:
            return
        record = parse_record(kind, text)
        if record is not None:
            self._sort(record)

    def _sort(self, record: Record) -> None:
        match record:
            case Access():
                self._event(record.event).accesses.append(record)
                self._place(record)
            case DomainMade():
                self._join(record)
            case Call():
                self._complete(self._events.pop(record.event), record)
            case DomainEnded():
                watch = self._by_domain.get(record.domain)
                if watch is not None:
                    watch.reported = max(watch.reported, record.denials)
            case LayerAdded():
                self._mark_layered(record.pid)
            case Reconfigured():
                self.changes += 1

    def _event(self, number: int) -> _Event:
        event = self._events.get(number)
        if event is None:
            event = _Event()
            _put(self._events, number, event, most=_EVENTS)
        return event

    def _place(self, access: Access) -> None:
        """Put a refusal to the watch of its domain, if that is known by now."""
        watch = self._by_domain.get(access.domain)
        if watch is not None:
            watch.counted += 1
            watch.add(access, None)

    def _join(self, made: DomainMade) -> None:
        watch = self._by_pid.get(made.pid)
        if watch is None:
            _put(self._makers, made.domain, made.pid)
            return
        _put(self._by_domain, made.domain, watch)
        # The refusal that made the kernel say so came just before.
        for access in self._event(made.event).accesses:
            if access.domain == made.domain:
                watch.counted += 1
                watch.add(access, None)

    def _complete(self, event: _Event, call: Call) -> None:
        """Give an event's refusals the program that met them."""
        for access in event.accesses:
            watch = self._by_domain.get(access.domain)
            if watch is not None:
                watch.add(access, call.program)
                continue
            watch = self._watch_of(call.pid, call.parent)
            if watch is None:
                continue
            if access.domain in self._makers and not _is_outer(access):
                # A layer that a program of the command's put on itself.
                watch.layered = True
            else:
                watch.add(access, call.program)

    def _mark_layered(self, pid: int) -> None:
        watch = self._watch_of(pid, 0)
        # Whoever it was has gone: any of them, then.
        for one in self._by_pid.values() if watch is None else (watch,):
            one.layered = True

    def _watch_of(self, pid: int, parent: int) -> Watch | None:
        """Find the command that a process belongs to."""
        found = self._by_pid.get(pid) or self._by_pid.get(parent)
        for _ in range(_GENERATIONS):
            if found is not None or pid <= 1:
                return found
            about = self._process(pid)
            if about is None:
                return None
            pid, session = about
            found = self._by_pid.get(session) or self._by_pid.get(pid)
        return None


@dataclass(slots=True)
class _Event:
    """Refusals of one system call, until the record about the call itself comes."""

    accesses: list[Access] = field(default_factory=list[Access])


def _is_outer(access: Access) -> bool:
    """Whether a right is one that only the cell's outer layers withhold."""
    return access.blockers[0].startswith(("scope.", "ptrace"))


K = TypeVar("K")
V = TypeVar("V")


def _put(table: OrderedDict[K, V], key: K, value: V, most: int = _KEPT) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > most:
        table.popitem(last=False)


def _process(pid: int) -> tuple[int, int] | None:
    """Return parent and session of a process. Source: proc_pid_stat(5)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # Fields are counted behind the name, which may hold anything.
    fields = text.rpartition(b")")[2].split()
    return int(fields[1]), int(fields[3])
