"""Where the cases get their executors from.

`executor_factory` is the one seam: its parameters are the ways to run the cases, in this
process and over the socket of a daemon.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from tests.conftest import daemon_factory
from tests.contract.daemon_host import DaemonPool, daemon_host
from tests.contract.world import HostFactory, local_host

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.stage import Install


@pytest.fixture
def anyio_backend() -> str:
    """The front doors run on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def daemon_pool(reachable_tmp: Path, install: Install) -> Iterator[DaemonPool]:
    """The daemons of all cases."""
    with daemon_factory(reachable_tmp, install) as start:
        yield DaemonPool(start)


@pytest.fixture(params=["in-process", "daemon"])
def executor_factory(request: pytest.FixtureRequest) -> HostFactory:
    """``async with executor_factory(**settings) as host``; see `local_host`."""
    if request.param == "in-process":
        return local_host
    return daemon_host(request.getfixturevalue("daemon_pool"))


@pytest.fixture
def workspace(reachable_tmp: Path) -> Path:
    """An empty directory to be the root of a confined session; not below /tmp."""
    path = reachable_tmp / f"case-{secrets.token_hex(4)}" / "ws"
    path.mkdir(parents=True)
    return path.resolve()
