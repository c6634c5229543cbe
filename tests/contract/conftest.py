"""Where the cases get their executors from.

`executor_factory` is the one seam: a parameter of it is a way to run the cases. A
host over a daemon is added by listing it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.world import HostFactory, local_host

if TYPE_CHECKING:
    from pathlib import Path

HOSTS: dict[str, HostFactory] = {"in-process": local_host}


@pytest.fixture
def anyio_backend() -> str:
    """The front doors run on asyncio."""
    return "asyncio"


@pytest.fixture(params=list(HOSTS))
def executor_factory(request: pytest.FixtureRequest) -> HostFactory:
    """``async with executor_factory(**settings) as host``; see `local_host`."""
    return HOSTS[request.param]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty directory to be the root of a confined session."""
    path = tmp_path / "ws"
    path.mkdir()
    return path.resolve()
