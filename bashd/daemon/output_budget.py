"""How much of the disk output may take, per session and for the whole daemon.

A budget is a cap with a parent: a session's budget hangs below the daemon's. Every
output file has one account, charged in whole blocks. When a cap or the disk itself
is reached, the oldest *finished* output of that level goes first; where none is
left, the largest file that is still being written, so that a flood pays for itself
and a quiet neighbour does not. A session's cap can only cost that session.

Everything here runs in the daemon's one thread.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_BYTES = 4096
"""What a file takes at least: the block size of ext4, xfs, btrfs and tmpfs."""


class Holder(Protocol):
    """Owns an output file and can part with it."""

    def give_up_file(self, *, urgent: bool) -> None:
        """Delete the file; *urgent*: its blocks are free when this returns."""
        ...


class OutputBudget:
    """A cap on the bytes that output files take together.

    Args:
        max_bytes: The cap.
        parent: A wider budget that the same files count against.
    """

    def __init__(self, max_bytes: int, *, parent: OutputBudget | None = None) -> None:
        self._max_bytes = max_bytes
        self._parent = parent
        self._live: dict[Account, None] = {}
        self._finished: dict[Account, None] = {}
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes charged to the files of this budget, in whole blocks."""
        return self._used_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes in whole blocks that may still be charged."""
        room = max(0, self._max_bytes - self._used_bytes)
        return room - room % BLOCK_BYTES

    def open(self, holder: Holder) -> Account:
        """Open the account of a file that *holder* is about to write."""
        account = Account(self, holder)
        for level in self.levels():
            level.admit(account)
        return account

    def levels(self) -> Iterator[OutputBudget]:
        """Yield this budget and the wider ones around it."""
        yield self
        if self._parent is not None:
            yield from self._parent.levels()

    def admit(self, account: Account) -> None:
        """Count *account* among the live files of this level."""
        self._live[account] = None

    def free_something(self, asking: Account, *, urgent: bool) -> bool:
        """Have one other file of this budget deleted; False if *asking* is to go."""
        for victim in self._finished:
            if victim is not asking:
                victim.evict(urgent=urgent)
                return True
        largest = max(self._live, key=_charged, default=asking)
        if largest.charged_bytes <= asking.charged_bytes:
            return False
        largest.evict(urgent=urgent)
        return True

    def add(self, account: Account, more_bytes: int) -> None:
        """Book a change of *account* on this level."""
        self._used_bytes += more_bytes
        if account.closed:
            self._live.pop(account, None)
            self._finished.pop(account, None)

    def finish(self, account: Account) -> None:
        """Queue *account* behind the finished files of this level."""
        if account in self._live:
            del self._live[account]
            self._finished[account] = None


class Account:
    """What one file is charged for."""

    __slots__ = ("_actual_bytes", "_budget", "_holder", "charged_bytes", "closed")

    def __init__(self, budget: OutputBudget, holder: Holder) -> None:
        self._budget = budget
        self._holder = holder
        self._actual_bytes = 0
        self.charged_bytes = 0
        self.closed = False

    def reserve(self, wanted: int, *, at_least: int = 1) -> int:
        """Reserve up to *wanted* bytes more; others may have to go for it.

        Returns:
            How many bytes may be written now, 0 if not even *at_least*.
        """
        granted = wanted
        for level in self._budget.levels():
            while (room := self._room(level)) < at_least:
                if not level.free_something(self, urgent=False):
                    return 0
            granted = min(granted, room)
        self._charge(self._actual_bytes + granted)
        return granted

    def _room(self, level: OutputBudget) -> int:
        return self.charged_bytes + level.room_bytes - self._actual_bytes

    def hold(self, actual_bytes: int) -> None:
        """Charge what the file really takes; what was reserved beyond is freed."""
        if self.closed:
            return
        self._actual_bytes = actual_bytes
        self._charge(actual_bytes)

    def make_room_on_disk(self, code: int) -> bool:
        """After a write failed with errno *code*, have another file deleted.

        Returns:
            False if there is nothing to delete or it would not help.
        """
        match code:
            case errno.ENOSPC:
                *_, widest = self._budget.levels()
                return widest.free_something(self, urgent=True)
            case errno.EDQUOT:
                # A quota is its user's: nobody else's files would help.
                return self._budget.free_something(self, urgent=True)
            case _:
                return False

    def finish(self) -> None:
        """The stream has ended: from now on this file goes before live ones."""
        for level in self._budget.levels():
            level.finish(self)

    def close(self) -> None:
        """The file is gone."""
        if self.closed:
            return
        self.closed = True
        self._charge(0)

    def evict(self, *, urgent: bool) -> None:
        """Have the holder delete the file; it counts no more after this."""
        self._holder.give_up_file(urgent=urgent)
        self.close()

    def _charge(self, bytes_needed: int) -> None:
        blocks = -(-bytes_needed // BLOCK_BYTES)
        more = blocks * BLOCK_BYTES - self.charged_bytes
        self.charged_bytes += more
        for level in self._budget.levels():
            level.add(self, more)


def _charged(account: Account) -> int:
    return account.charged_bytes
