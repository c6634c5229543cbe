"""What the MCP tests share."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from tests.mcp.serving import ERAS
from tests.support.stations import skip_unless_possible

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import DaemonFactory
    from tests.support.accounts import Account
    from tests.support.daemons import RunningDaemon
    from tests.support.stations import StationPool


@pytest.fixture
def anyio_backend() -> str:
    """The server runs on asyncio."""
    return "asyncio"


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    """The handshake of 2024-2025, then the protocol of 2026."""
    return request.param


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty directory to be the root of a confined session."""
    path = tmp_path / "ws"
    path.mkdir()
    return path.resolve()


@pytest.fixture(params=["root", "user", "served"])
def daemon(request: pytest.FixtureRequest, station_pool: StationPool) -> RunningDaemon:
    """A daemon that tests share: root's, a user's, and root's that serves the user."""
    combination = (request.param, "bwrap")
    skip_unless_possible(request, combination)
    return station_pool.daemon(combination)


@pytest.fixture(params=["root", "user"])
def own_daemon(
    request: pytest.FixtureRequest, make_daemon: DaemonFactory
) -> RunningDaemon:
    """A daemon for one test, which may end it; root's and an ordinary user's."""
    who, runner = request.param, "bwrap"
    skip_unless_possible(request, (who, runner))
    name = "root_account" if who == "root" else "ordinary_user"
    account: Account = request.getfixturevalue(name)
    return make_daemon(account=account, runner=runner)


@pytest.fixture
def folder(daemon: RunningDaemon) -> Path:
    """An empty directory of the caller's, where everybody can look."""
    return new_folder(daemon)


def new_folder(daemon: RunningDaemon) -> Path:
    """Make an empty directory of the caller's."""
    return daemon.make_workspace(f"mcp-{secrets.token_hex(4)}")
