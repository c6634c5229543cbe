"""The cases over the socket: a real daemon, one connection a session.

Daemons are kept for as long as the tests run, one for each set of settings: most cases
share the same one.
"""

from __future__ import annotations

import json
import os
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from bashd.client.link import Link
from bashd.core.model import Mode
from bashd.mcp.steady import Reach, SteadyClient, open_steady
from bashd.tools.daemon_session import DaemonSession
from tests.support.accounts import current_account

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path

    from bashd.core.executor import Executor
    from tests.conftest import DaemonFactory
    from tests.contract.world import Host
    from tests.support.daemons import RunningDaemon


class DaemonPool:
    """Daemons by their settings."""

    def __init__(self, start: DaemonFactory) -> None:
        self._start = start
        self._running: dict[str, RunningDaemon] = {}

    def socket(self, **sections: dict[str, Any]) -> str:
        """Return the socket of a daemon with these sections in its configuration."""
        key = json.dumps(sections, sort_keys=True)
        if key not in self._running:
            self._running[key] = self._start(
                account=current_account(), settings=sections
            )
        return str(self._running[key].socket)


class DaemonHostSession:
    """A session and the connection that was made for it."""

    def __init__(self, client: SteadyClient, socket: str) -> None:
        self._client, self._socket = client, socket
        self.state = DaemonSession(client)

    @property
    def session_id(self) -> str:
        return self._client.session.session_id

    @property
    def executor(self) -> Executor:
        return self._client

    async def switch(self, mode: Mode | None) -> None:
        params = {"session_id": self.session_id, "mode": mode and str(mode)}
        _ask(self._socket, "session.set_mode", params)

    async def events(self) -> Sequence[Mapping[str, object]]:
        path = self._client.session.log_path
        assert path is not None
        with open(path) as lines:  # noqa: ASYNC230, PTH123 - a few lines
            return [json.loads(line) for line in lines]


class DaemonHost:
    """Connections to one daemon."""

    def __init__(self, socket: str, cwd: str, mode: Mode | None) -> None:
        self._socket, self._cwd, self._mode = socket, cwd, mode
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._executor = await self._connect(Reach(self._socket, self._cwd, self._mode))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    @property
    def executor(self) -> Executor:
        return self._executor

    async def open(self, cwd: str | None, approval: str) -> DaemonHostSession:
        params = {
            "cwd": cwd or self._cwd,
            "mode": self._mode and str(self._mode),
            "approval": approval,
            "ambient": {"PATH": os.environ["PATH"]},
        }
        info = _ask(self._socket, "session.open", params)
        client = await self._connect(Reach(self._socket, session=info["session_id"]))
        return DaemonHostSession(client, self._socket)

    async def _connect(self, reach: Reach) -> SteadyClient:
        return await self._stack.enter_async_context(open_steady(reach))


def _ask(socket: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Ask as somebody else does, on a connection of their own."""
    link = Link.reach(socket, autostart=False)
    try:
        return link.call(method, params)
    finally:
        link.close()


def daemon_host(pool: DaemonPool) -> Any:
    """Return a host factory over the daemons of *pool*; see `local_host`.

    Without a root the sessions are in danger-full-access: nothing is confined, as in a
    composition without a sandbox.
    """

    @asynccontextmanager
    async def open_(
        *,
        root: Path | None = None,
        cwd: str = "/",
        sandbox_mode: Mode = Mode.READ_ONLY,
        **executor: Any,
    ) -> AsyncGenerator[Host]:
        socket = pool.socket(
            executor=executor, sandbox={"mode": str(sandbox_mode), "runner": "auto"}
        )
        mode = None if root else Mode.DANGER_FULL_ACCESS
        async with DaemonHost(socket, cwd, mode) as host:
            yield host

    return open_
