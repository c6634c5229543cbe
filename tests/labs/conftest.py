"""Machines fresh from debootstrap. Minutes each: ``./dev labs`` runs them."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.labs.roots import DEBIAN_12, UBUNTU_2404, Release, make_root, why_not
from tests.labs.stranger import Stranger
from tests.systemd import machine

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

MINUTES = 60
"""In seconds."""
RELEASES = (DEBIAN_12, UBUNTU_2404)
KEPT = "BASHD_LABS"
"""Environment variable: a folder that keeps roots and images for the next run."""


@pytest.fixture(scope="session")
def lab_folder() -> Iterator[Path]:
    """Where roots and images are made; gone afterwards unless it was named."""
    named = os.environ.get(KEPT)
    if named:
        Path(named).mkdir(parents=True, exist_ok=True)
        yield Path(named)
        return
    # On a disk: some hundred megabytes each.
    folder = Path(tempfile.mkdtemp(prefix="bashd-labs-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def stranger_on(release: Release, folder: Path) -> Generator[Stranger]:
    """Boot a machine of *release* with a copy of the checkout."""
    reason = why_not(release) or machine.why_not()
    if reason is not None:
        pytest.skip(reason)
    root = make_root(release, folder)
    with machine.Machine(root, network=True) as booted:
        stranger = Stranger(booted)
        stranger.meet_the_network()
        stranger.bring()
        yield stranger


@pytest.fixture(params=RELEASES, ids=lambda release: release.name)
def stranger(request: pytest.FixtureRequest, lab_folder: Path) -> Iterator[Stranger]:
    """A stranger before a fresh machine of each release."""
    with stranger_on(request.param, lab_folder) as found:
        yield found
