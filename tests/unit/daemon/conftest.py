"""What the daemon's unit tests share."""

from __future__ import annotations

import pytest

from tests.unit.daemon.output_stage import stage


@pytest.fixture
def made():
    """Stores and their places, in a folder that does not outlive the test."""
    with stage() as built:
        yield built
