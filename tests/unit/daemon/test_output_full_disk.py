"""Full disks, for real: each scenario on a tmpfs that only its process sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.daemon.full_disk_scenarios import SCENARIOS

ROOT = Path(__file__).parents[3]
MOUNT = 'mount -t tmpfs -o size=1m,nr_inodes=8 none "$1" && shift && exec "$@"'
# An ordinary user mounts in a user namespace of its own.
UNSHARE = ["unshare", "--mount"] + (["--map-root-user"] if os.geteuid() else [])


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_a_full_disk(scenario, tmp_path):
    enter = [*UNSHARE, "sh", "-c", MOUNT, "sh", str(tmp_path)]
    if subprocess.run([*enter, "true"], check=False).returncode:
        pytest.skip("no private mount namespace here")
    script = Path(__file__).with_name("full_disk_scenarios.py")
    done = subprocess.run(
        [*enter, sys.executable, str(script), str(tmp_path), scenario],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
