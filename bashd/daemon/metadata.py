"""Keeps watch over protected metadata, command by command.

Theory of operation. One `MetadataGuard` for each caller and workspace, shared by the
caller's sessions there. `begin` makes sure that it knows how things are before a
command starts; `Ticket.settle`, after it has ended, finds what changed and has it undone
(`bashd.daemon.settlement`). In between and afterwards inotify says whether anything
happened at all: while nothing does, both cost one read. Under landlock, where nothing
else protects contents and inotify does not tell of writes through a mapping, both look
at the files that exist all the same.

Whose change was it? While a command runs, a change is taken for its. Between commands it
is taken for the user's and becomes the new state, unless something of an earlier command
was still there (`bashd.daemon.leftovers`). What a task does that runs for days is found
out when the next command of that workspace settles, or when it ends itself.

A hard link can be written to by its other names, wherever they are, and no event tells
of it. Files that had some when they were last looked at are looked at before and after
each command, as under landlock.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from bashd.core.metadata import Findings, Kind, Target
from bashd.core.paths import folders_between
from bashd.daemon import survey
from bashd.daemon.folder_watch import Changes, Event, FolderWatch
from bashd.daemon.identity import run_as
from bashd.daemon.protected import find_targets
from bashd.daemon.repository_watch import RepositoryWatch
from bashd.daemon.settlement import Settlement
from bashd.daemon.snapshot import NOTHING, Snapshot, take

if TYPE_CHECKING:
    from bashd.daemon.identity import Identity
    from bashd.daemon.leftovers import Leftover
    from bashd.daemon.survey import Question, Survey

_ORDER: Final = {Kind.CONFIG: 0, Kind.HOOKS: 1, Kind.PLAIN: 2}
"""Configuration first: it says where hooks are looked for."""
_GIT_PARTS: Final = frozenset((".git", "config", "commondir", "HEAD", "hooks"))
_NOTHING_FOUND: Final = Findings()

Key = tuple[object, ...]


def key_of(asked: Question, *, deep: bool) -> Key:
    """Return what two questions must share for one guard to serve both."""
    return (
        *(asked.uid, asked.workspace, asked.home, asked.config_home, asked.writable),
        *(asked.bounds, asked.protected, asked.guarded, deep),
    )


class MetadataGuard:
    """See the module docstring.

    Args:
        identity: With whose rights to look and to undo.
        deep: Nothing but this protects contents.
    """

    def __init__(self, identity: Identity, *, deep: bool) -> None:
        self.users = 0
        """Sessions that have it; see `Guards`."""
        self._identity = identity
        self._deep = deep
        self._lock = trio.Lock()
        self._asked: Question | None = None
        self._roots: tuple[str, ...] = ()
        self._names = frozenset[str]()
        """Names of files that matter wherever they appear."""
        try:
            self._watch: FolderWatch | None = FolderWatch()
        except OSError:
            self._watch = None
        self._repositories = RepositoryWatch((), self._watch)
        self._known: dict[str, tuple[Target, Snapshot]] = {}
        self._linked: set[str] = set()
        """Paths of `_known` that hold hard links."""
        self._exists = frozenset[str]()
        """What of it is there."""
        self._running: weakref.WeakSet[Ticket] = weakref.WeakSet()
        self._leftovers: list[tuple[Leftover, frozenset[str]]] = []
        """What may be left of earlier commands, and what its cell keeps by mounts."""
        self._pending = _NOTHING_FOUND
        self._blind = self._watch is None
        """Some folder cannot be watched, so silence proves nothing."""

    @property
    def repositories(self) -> tuple[str, ...]:
        """Those known below the roots."""
        return self._repositories.known

    async def prepare(self, asked: Question) -> None:
        """Look for repositories below the roots, the first time and when those differ.

        Raises:
            StartError: The workspace is not usable.
        """
        async with self._lock:
            await run_as(self._identity, lambda: self._prepare(asked))

    def _prepare(self, asked: Question) -> None:
        self._asked = asked
        parts = {part for name in asked.protected for part in name.split("/")}
        guarded = {path.rpartition("/")[2] for path in asked.guarded}
        self._names = frozenset(parts | guarded | _GIT_PARTS)
        roots, _ = survey.find_roots(asked)
        if roots != self._roots:
            self._roots = roots
            self._repositories = RepositoryWatch(roots, self._watch)
            self._repositories.walk()

    async def begin(
        self, seen: Survey, uncovered: frozenset[str] = frozenset()
    ) -> Ticket:
        """Take note of how things are before a command starts.

        Args:
            seen: What its cell was built from.
            uncovered: Protected files of it that have lost their mount since.
        """
        # Without the lock, which is a turn of the loop, where there is nothing to do.
        if self._lock.locked() or self._needs_look(seen, uncovered):
            async with self._lock:
                if self._needs_look(seen, uncovered):
                    await self._take_note(seen, loose=bool(uncovered or self._linked))
        # Under landlock there are no mounts.
        mounted = frozenset[str]() if self._deep else seen.mounted
        if uncovered or self._linked:
            mounted -= uncovered | self._linked
        ticket = Ticket(self, mounted, covered=self._exists <= mounted)
        self._running.add(ticket)
        return ticket

    def _needs_look(self, seen: Survey, uncovered: frozenset[str]) -> bool:
        return bool(uncovered or self._linked) or not self._is_settled(seen)

    async def _take_note(self, seen: Survey, *, loose: bool) -> None:
        idle = not self._running
        # Before the hop: who is whose child is the daemon's to see.
        suspicious = any(left.was_real() for left, _ in self._leftovers)
        await run_as(
            self._identity,
            lambda: self._begin(
                seen, idle=idle, suspicious=suspicious, all_of_it=loose
            ),
        )
        self._leftovers = [x for x in self._leftovers if not x[0].is_gone()]

    def _is_quiet(self) -> bool:
        """Whether nothing can have changed since the last look."""
        if self._blind or self._watch is None or (self._deep and self._exists):
            return False
        return self._watch.is_quiet()

    def _is_settled(self, seen: Survey) -> bool:
        return self._is_quiet() and self._known.keys() >= seen.target_paths

    def _begin(
        self, seen: Survey, *, idle: bool, suspicious: bool, all_of_it: bool
    ) -> None:
        if idle and self._known:
            self._pending += self._examine(
                "between", act=suspicious, all_of_it=all_of_it
            )
        for target in seen.targets:
            if target.path not in self._known:
                self._remember(target, take(target))

    def _examine(self, run_id: str, *, act: bool, all_of_it: bool = False) -> Findings:
        changes = Changes(overflow=True) if self._watch is None else self._watch.take()
        matters = changes.overflow or any(map(self._matters, changes.events))
        if not (matters or all_of_it or self._deep or self._blind):
            return _NOTHING_FOUND
        # What does not exist cannot come without an event.
        silent = self._deep and not (matters or self._blind)
        targets = {
            path: target
            for path, (target, was) in self._known.items()
            if was.top is not None or not silent
        }
        settlement = Settlement(run_id, act, self._by_identity())
        if matters:
            self._repositories.take(changes)
        self._check_all(settlement, targets)
        if matters or settlement.findings:
            # After the configuration is as it was: it says where hooks are.
            targets = {
                target.path: target
                for target in self._find_targets()
                if target.path not in self._known
            }
            self._check_all(settlement, targets)
        return settlement.findings

    def _matters(self, event: Event) -> bool:
        """Whether an event may concern what is protected: most files do not."""
        return (
            event.is_dir
            or event.name in self._names
            or ".git" in event.folder
            or event.folder in self._known
        )

    def _check_all(self, settlement: Settlement, targets: dict[str, Target]) -> None:
        for path, target in sorted(
            targets.items(), key=lambda item: (_ORDER[item[1].kind], item[0])
        ):
            is_new = path not in self._known
            before = NOTHING if is_new else self._known[path][1]
            after = settlement.check(
                target, before, is_new=is_new, mounted=path in self._mounted()
            )
            if after is not before or is_new:
                self._remember(target, after)

    def _mounted(self) -> frozenset[str]:
        """Return the paths that every cell now in use keeps by a mount."""
        sets = [ticket.mounted for ticket in self._running]
        sets += [mounted for _, mounted in self._leftovers]
        return sets[0].intersection(*sets[1:]) if sets else frozenset()

    def _by_identity(self) -> dict[tuple[int, int, int], Snapshot]:
        return {
            snapshot.top.identity: snapshot
            for target, snapshot in self._known.values()
            if target.kind is not Kind.PLAIN and snapshot.top is not None
        }

    def _find_targets(self) -> tuple[Target, ...]:
        asked = self._asked
        if asked is None:
            return ()
        return find_targets(
            self._roots,
            asked.protected,
            home=asked.home,
            config_home=asked.config_home,
            guarded=asked.guarded,
            nested=self._repositories.known,
        )

    def _remember(self, target: Target, snapshot: Snapshot) -> None:
        self._known[target.path] = (target, snapshot)
        if snapshot.has_other_names:
            self._linked.add(target.path)
        else:
            self._linked.discard(target.path)
        if (target.path in self._exists) != (snapshot.top is not None):
            self._exists ^= {target.path}
        folders = [target.root, *folders_between(target.path, target.root)]
        if snapshot.top is not None and snapshot.top.type == "d":
            folders.append(target.path)
        if self._watch is not None:
            for folder in folders:
                watched = self._watch.add(folder)
                self._blind |= not watched and os.path.isdir(folder)  # noqa: PTH112

    async def settle(
        self, run_id: str, leftover: Leftover | None, ticket: Ticket
    ) -> Findings:
        """See `Ticket.settle`."""
        if leftover is not None:
            self._leftovers.append((leftover, ticket.mounted))
        try:
            # What no mount keeps can be written to without any folder changing.
            if ticket.covered and self._is_quiet() and not self._pending:
                return _NOTHING_FOUND
            async with self._lock:
                found = await run_as(
                    self._identity,
                    lambda: self._examine(
                        run_id, act=True, all_of_it=not ticket.covered
                    ),
                )
                found, self._pending = self._pending + found, _NOTHING_FOUND
                return found
        finally:
            self._running.discard(ticket)

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.close()


@dataclass(slots=True, eq=False, weakref_slot=True)
class Ticket:
    """One command under a guard's eyes, from `MetadataGuard.begin` to `settle`."""

    _guard: MetadataGuard
    mounted: frozenset[str]
    """Protected paths that its cell keeps by a mount."""
    covered: bool
    """Those are all that exist."""

    async def settle(self, run_id: str, leftover: Leftover | None) -> Findings:
        """Find what the command changed, and make it harmless.

        Args:
            run_id: Of the command.
            leftover: What of it is still there, if anything.
        """
        return await self._guard.settle(run_id, leftover, self)


@dataclass(slots=True)
class Guards:
    """All guards of a daemon, shared by the sessions of one caller and workspace."""

    _guards: dict[Key, MetadataGuard] = field(default_factory=dict[Key, MetadataGuard])

    def acquire(self, key: Key, identity: Identity, *, deep: bool) -> MetadataGuard:
        """Return the guard for *key*; give it back with `release`."""
        guard = self._guards.get(key)
        if guard is None:
            guard = self._guards[key] = MetadataGuard(identity, deep=deep)
        guard.users += 1
        return guard

    def release(self, key: Key) -> None:
        """Give a guard back; the last one closes it."""
        guard = self._guards[key]
        guard.users -= 1
        if not guard.users:
            del self._guards[key]
            guard.close()
