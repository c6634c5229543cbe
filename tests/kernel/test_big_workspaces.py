"""What a workspace holds costs its commands nothing: no call walks the tree."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support.stations import (
    CONFINING,
    ROOT_BWRAP,
    SERVED_LANDLOCK,
    Station,
    on,
)

FILES = 250_000
_IN_A_FOLDER = 1000
MEDIAN_S = 0.1


MAKE = """
set -e
mkdir d0; (cd d0; seq -f f%g {folder_of} | xargs touch)
seq -f d%g 1 {last} | xargs -n 1 cp -rl d0
git init -q .
"""
"""Links count as files do, and are made faster."""


@pytest.fixture
def big(station: Station) -> Iterator[Station]:
    """A station whose workspace is a repository of very many files."""
    script = MAKE.format(folder_of=_IN_A_FOLDER, last=FILES // _IN_A_FOLDER - 1)
    in_workspace = f"cd {station.workspace}; {script}"
    made = station.as_caller("sh", "-c", in_workspace, timeout_s=100)
    assert made.returncode == 0, made
    yield station
    subprocess.run(["rm", "-rf", *station.workspace.iterdir()], check=True)


@pytest.mark.slow
@pytest.mark.timeout(180)
@on(ROOT_BWRAP, SERVED_LANDLOCK)
def test_i59_a_quarter_of_a_million_files_slow_no_command_down(big: Station):
    for mode in CONFINING:
        assert big.text("ls | wc -l", mode) == f"{FILES // _IN_A_FOLDER}\n"
        times: list[float] = []
        for _ in range(20):
            began = time.monotonic()
            assert big.run("true", mode).exit_code == 0
            times.append(time.monotonic() - began)
        assert statistics.median(times) < MEDIAN_S, times
