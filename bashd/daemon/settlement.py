"""The check after a command: what it changed of protected metadata is made harmless.

One function a kind. Each compares what was there before with what is there now, puts
back or disarms what the policy does not allow, and says so. Under bwrap the mounts
keep the contents, so only what lost its mount (replaced, moved, new) is looked into;
under landlock this is the only line. Run as the peer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bashd.core.git_config import code_keys, effects
from bashd.core.metadata import (
    Change,
    Entry,
    Findings,
    Kind,
    Target,
    What,
    compare,
)
from bashd.core.model import Denial
from bashd.core.paths import is_below
from bashd.daemon import undo
from bashd.daemon.repositories import read_text
from bashd.daemon.snapshot import (
    NOTHING,
    Snapshot,
    has_content,
    is_in_place,
    is_same,
    look,
    look_at_top,
    same_file,
    take,
)

_MAX_FINDINGS: Final = 16
"""More would not help a reader."""


@dataclass(slots=True)
class Settlement:
    """One check: what to compare, and what came of it.

    Args:
        run_id: Of the command that has just ended; part of the names of what is put
            aside.
        act: Changes are a command's and are undone; otherwise they are the host's and
            only taken note of.
        known: Protected hooks and configurations by identity: one of these at a new
            path belongs to a repository that was moved.
    """

    run_id: str
    act: bool
    known: Mapping[tuple[int, int, int], Snapshot]
    _denials: list[Denial] = field(default_factory=list[Denial])
    _notes: list[str] = field(default_factory=list[str])
    _more: int = 0

    @property
    def findings(self) -> Findings:
        """What was found out and done so far."""
        notes = self._notes[:_MAX_FINDINGS]
        if self._more:
            notes.append(f"{self._more} more changes of protected metadata were undone")
        return Findings(tuple(self._denials), tuple(notes))

    def check(
        self, target: Target, before: Snapshot, *, is_new: bool, mounted: bool
    ) -> Snapshot:
        """Compare one path, act, and return what is there afterwards.

        Args:
            target: The path.
            before: As it was; empty where nothing was there.
            is_new: Nobody protected it before: its repository is new.
            mounted: A read-only mount kept its contents as long as it was in place.
        """
        if not is_new and is_same(target, before, mounted=mounted):
            return before
        if self.act and not (mounted and is_in_place(target, before)):
            try:
                self._check_kind(target, before, is_new=is_new, mounted=mounted)
            except OSError as error:
                self._note(f"{target.path} was changed and cannot be put back: {error}")
        return take(target)

    def _check_kind(
        self, target: Target, before: Snapshot, *, is_new: bool, mounted: bool
    ) -> None:
        match target.kind:
            case Kind.CONFIG if is_new:
                self._report_keys(target)
            case Kind.CONFIG:
                self._check_config(target, before, mounted=mounted)
            case Kind.HOOKS:
                # Of a repository that was moved, what it brought along stays.
                known = self._before_move(target) if is_new else before
                self._check_hooks(target, known, mounted=mounted or is_new)
            case Kind.PLAIN if mounted:
                self._check_replaced(target, before)
            case Kind.PLAIN:
                self._check_plain(target, before)

    # -- kinds --------------------------------------------------------------------

    def _report_keys(self, target: Target) -> None:
        now = take(target)
        if same_file(self._before_move(target), now, ""):
            return
        keys = code_keys(read_text(target.path) or "")
        if keys:
            self._note(f"{target.path} makes git run commands: {', '.join(keys)}")

    def _before_move(self, target: Target) -> Snapshot:
        top = look_at_top(target.path)
        return NOTHING if top is None else self.known.get(top.identity, NOTHING)

    def _check_config(self, target: Target, before: Snapshot, *, mounted: bool) -> None:
        if not os.path.lexists(target.path):
            if not mounted:
                self._restore(target, before, "")
            return
        if before.top is not None and "" not in before.contents:
            self._note(f"{target.path} was changed and is too large to be checked")
            return
        old = before.contents.get("", b"").decode(errors="surrogateescape")
        if effects(read_text(target.path) or "") != effects(old):
            what = What.CREATED if before.top is None else What.CHANGED
            self._replace(target, before, "", what)

    def _check_hooks(self, target: Target, before: Snapshot, *, mounted: bool) -> None:
        top = look_at_top(target.path)
        if top is not None and top.type == "l":
            self._replace(target, NOTHING, "", What.CREATED)
            top = None
        if top is None and not mounted:
            self._restore_hooks(target, before)
        now = take(target)
        for change in compare(before.tree, now.tree):
            name = change.relative
            if not name:
                continue
            if not mounted and name in before.contents:
                self._put_back(target, before, change)
            elif name in now.tree and not same_file(before, now, name):
                self._disarm(target, name, now.tree[name])

    def _restore_hooks(self, target: Target, before: Snapshot) -> None:
        for name in sorted(before.tree):
            self._restore(target, before, name)

    def _disarm(self, target: Target, name: str, entry: Entry) -> None:
        path = f"{target.path}/{name}"
        if entry.type == "l":
            self._replace(target, NOTHING, name, What.CREATED)
        if entry.type != "f" or not entry.executable:
            return
        try:
            undo.disarm(path)
        except PermissionError:
            # A program its owner may run and not read.
            self._replace(target, NOTHING, name, What.CREATED)
            return
        self._deny(path, "execute")
        self._note(f"{path} would be run by git: its executable bit was taken")

    def _check_replaced(self, target: Target, before: Snapshot) -> None:
        """Look at what lost its mount because the host replaced it.

        Whether the command wrote there afterwards cannot be told, so nothing is undone.
        """
        now = take(target)
        if now.top is not None and not same_file(before, now, ""):
            self._note(
                f"{target.path} was replaced while the command ran, which ends its"
                " protection until the next command; look at it"
            )

    def _check_plain(self, target: Target, before: Snapshot) -> None:
        now = look(target)
        if before.top is None:
            self._replace(target, NOTHING, "", What.CREATED)
            return
        if not (before.complete and now.complete):
            self._note(f"{target.path} holds too much to be checked")
            return
        put_aside: list[str] = []
        for change in compare(before.tree, now.tree):
            if any(is_below(f"/{change.relative}", f"/{p}") for p in put_aside):
                if change.relative in before.tree:
                    self._restore(target, before, change.relative, quiet=True)
            elif self._put_back(target, before, change):
                put_aside.append(change.relative)

    # -- acting -------------------------------------------------------------------

    def _put_back(self, target: Target, before: Snapshot, change: Change) -> bool:
        """Undo one change; says whether something was put aside."""
        name, old = change.relative, before.tree.get(change.relative)
        path = _path(target, name)
        if old is None:
            self._replace(target, NOTHING, name, change.what)
            return True
        if change.what is What.REMOVED:
            self._restore(target, before, name)
            return False
        if not has_content(path, old, before.contents.get(name)):
            self._replace(target, before, name, change.what)
            return True
        now = look_at_top(path)
        if now is not None and now.mode != old.mode and old.type != "l":
            undo.restore_mode(path, old.mode)
            self._deny(path, "change")
            self._note(f"{path} is protected: its mode was put back")
        return False

    def _replace(self, target: Target, before: Snapshot, name: str, what: What) -> None:
        """Put what is there aside, and what was there back."""
        path = _path(target, name)
        aside = undo.put_aside(path, self.run_id)
        self._deny(path, what.value)
        if self._bring_back(target, before, name):
            self._note(
                f"{path} is protected and was put back; the command's is now {aside}"
            )
        else:
            self._note(f"{path} is protected: what the command made is now {aside}")

    def _restore(
        self, target: Target, before: Snapshot, name: str, *, quiet: bool = False
    ) -> None:
        """Put back what was removed."""
        path = _path(target, name)
        gone = not os.path.lexists(os.path.dirname(path))  # noqa: PTH120 - text
        if gone or os.path.lexists(path) or name not in before.tree:
            return  # all of it is gone, and nobody will look for a part of it
        if not self._bring_back(target, before, name):
            self._note(f"{path} is protected, was removed, and cannot be put back")
        elif not quiet:
            self._deny(path, What.REMOVED.value)
            self._note(f"{path} is protected and was put back")

    def _bring_back(self, target: Target, before: Snapshot, name: str) -> bool:
        old = before.tree.get(name)
        if old is None:
            return False
        path, content = _path(target, name), before.contents.get(name)
        if old.type == "d":
            undo.restore_folder(path, old.mode)
        elif content is None:
            return False
        elif old.type == "l":
            undo.restore_link(path, content)
        else:
            undo.restore_file(path, content, old.mode)
        return True

    def _deny(self, path: str, operation: str) -> None:
        if len(self._denials) < _MAX_FINDINGS:
            self._denials.append(Denial(path, operation, "policy"))
        else:
            self._more += 1

    def _note(self, text: str) -> None:
        self._notes.append(text)


def _path(target: Target, name: str) -> str:
    return f"{target.path}/{name}" if name else target.path
