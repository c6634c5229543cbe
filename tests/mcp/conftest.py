"""What the MCP tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.mcp.serving import ERAS

if TYPE_CHECKING:
    from pathlib import Path


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
