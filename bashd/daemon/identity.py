"""As whom the daemon touches files and starts cells.

A user daemon is its one peer. A root daemon opens every caller-supplied path with the
peer's own rights: a descriptor opened by uid 0 would bypass the peer's permissions on
the way. That happens in a worker thread whose file-system ids are the peer's, so that
a peer's slow or hanging file system delays only that peer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import trio

from bashd.launcher import kernel

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """A peer as the kernel reported it, with its passwd facts."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str
    shell: str = "/bin/sh"

    @property
    def is_own(self) -> bool:
        """Whether this is the daemon's own uid."""
        return self.uid == os.geteuid()


async def run_as(identity: Identity, work: Callable[[], T]) -> T:
    """Call *work* with the peer's rights on files; it must not await.

    In place where daemon and peer are one, else in a worker thread.
    """
    if identity.is_own:
        return work()
    return await trio.to_thread.run_sync(_with_identity, identity, work)


def _with_identity(identity: Identity, work: Callable[[], T]) -> T:
    kernel.set_thread_fs_identity(identity.uid, identity.gid, identity.groups)
    try:
        return work()
    finally:
        try:
            kernel.set_thread_fs_identity(0, 0, ())
        except OSError:
            # A pooled thread that stays another user would serve the wrong peer.
            os.abort()
