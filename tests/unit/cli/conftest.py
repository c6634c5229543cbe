"""A server for every test that wants one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.client.wire_server import WireServer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WireServer]:
    with serving(tmp_path) as running:
        yield running
