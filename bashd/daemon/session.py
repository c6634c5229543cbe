"""A session: one caller's long-lived context, with everything that belongs to it.

Its folders, cells, network and output budget end with it; nothing of it is shared but
through the values here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from bashd.core.confinement import Places
from bashd.core.model import Mode
from bashd.daemon.cells import SessionCells
from bashd.daemon.identity import Identity
from bashd.daemon.job_time import JobTime
from bashd.daemon.network import SessionNetwork
from bashd.daemon.output import OutputBudget, OutputDirectory, StreamStore
from bashd.daemon.run_facts import RunHistory
from bashd.daemon.session_log import SessionLog

if TYPE_CHECKING:
    from bashd.daemon.call import Client
    from bashd.daemon.ready import Ready


@dataclass(slots=True, eq=False)
class Session:
    """See the module docstring. Made by `bashd.daemon.sessions.Sessions`."""

    session_id: str
    identity: Identity
    cwd: str
    """Canonical; root and default workdir at once."""
    places: Places
    cells: SessionCells
    network: SessionNetwork
    output: OutputDirectory
    budget: OutputBudget
    log: SessionLog
    policy: str | None = None
    mode_override: Mode | None = None
    approval: str = "ask"
    is_default: bool = False
    """Found again by uid and cwd instead of by its id."""
    anonymous: bool = False
    """Of callers without a session: no BASHD_SESSION_ID, never listed."""
    job: str | None = None
    """Tells default sessions of one folder apart: one CI job from the next."""
    job_time: JobTime = field(default_factory=JobTime)
    ambient: dict[str, str] = field(default_factory=dict[str, str])
    """The caller's environment as it was sent when the session was opened."""
    environments: dict[tuple[str, str | None], tuple[dict[str, str], Ready]] = field(
        default_factory=dict["tuple[str, str | None]", "tuple[dict[str, str], Ready]"]
    )
    """Environments composed from *ambient*, by policy digest and runner."""
    env_removed: tuple[str, ...] = ()
    notices: list[str] = field(default_factory=list[str])
    """Ids of settled tasks that no subscriber has been told of yet."""
    history: RunHistory = field(default_factory=RunHistory)
    """Its latest commands."""
    untaken: list[str] = field(default_factory=list[str])
    """Ids of settled tasks whose owner has not taken the news of it."""
    spilled: list[StreamStore] = field(default_factory=list[StreamStore])
    """Stores of foreground runs whose spill files were advertised."""
    created_at: float = field(default_factory=time.time)
    last_used: float = field(default_factory=trio.current_time)
    active: int = 0
    """Commands being started or running, foreground and background."""
    clients: set[Client] = field(default_factory=set["Client"])
    """Connections that have opened it or come back to it, and are there."""
    closing: bool = False

    @property
    def is_job(self) -> bool:
        """Whether all that runs in it belongs together, as the steps of a CI job do."""
        return self.job is not None or not self.is_default

    def touch(self) -> None:
        """Count as used now."""
        self.last_used = trio.current_time()

    def hold(self, client: Client) -> None:
        """Keep it open for as long as *client* is connected."""
        if client in self.clients:
            return

        def leave() -> None:
            self.clients.discard(client)
            self.touch()

        self.clients.add(client)
        client.closed.subscribe(leave)
