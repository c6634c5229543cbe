"""The tools belong to no event loop: what awaits is run on both."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both loops the library promises."""
    return request.param
