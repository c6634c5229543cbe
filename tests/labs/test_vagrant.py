"""The Vagrantfile: Vagrant finds no fault with it, and its provisioning provisions.

The second in a fresh root file system that is booted without a hypervisor; what a box
adds to that is its kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.labs.conftest import MINUTES, stranger_on
from tests.labs.roots import DEBIAN_12
from tests.labs.stranger import CHECKOUT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.labs.stranger import Stranger

pytestmark = [pytest.mark.lab, pytest.mark.timeout(30 * MINUTES)]

SOME = ("tests/test_main_job.py", "tests/test_units.py", "tests/multiuser")
"""All would take most of an hour, and CI runs them."""


@pytest.fixture(scope="module")
def debian(lab_folder: Path) -> Iterator[Stranger]:
    """Debian, which has Vagrant among its packages."""
    with stranger_on(DEBIAN_12, lab_folder) as found:
        found.root(
            "apt-get update -q; DEBIAN_FRONTEND=noninteractive"
            " apt-get install -q -y --no-install-recommends vagrant"
        )
        yield found


def test_vagrant_finds_no_fault_with_the_file(debian: Stranger):
    # Whether a hypervisor is there is not what is asked.
    said = debian.root("vagrant validate --ignore-provider")
    assert said.endswith("Vagrantfile validated successfully."), said


def test_vagrant_would_see_a_fault(debian: Stranger):
    debian.root(
        "mkdir /tmp/faulty; sed s/vm.box/vm.bux/ Vagrantfile >/tmp/faulty/Vagrantfile"
    )
    with pytest.raises(AssertionError, match="bux"):
        debian.root("cd /tmp/faulty; vagrant validate --ignore-provider")


def test_the_provisioning_installs_the_service_and_runs_the_tests(debian: Stranger):
    place = "/vagrant"
    debian.bring(place)
    debian.root(f"rm -rf {CHECKOUT}/*")
    said = debian.root(
        f"cd {place}; ruby -e 'load \"Vagrantfile\"' >/tmp/provision;"
        f" sh /tmp/provision {place} {' '.join(SOME)}",
        timeout_s=25 * MINUTES,
    )
    assert "ran systemctl enable --now bashd.socket" in said
    closing = said.splitlines()[-1]
    assert " passed" in closing, said[-3000:]
    assert "failed" not in closing, said[-3000:]
    assert debian.login("vagrant", "bashd run --no-autostart -- id -un") == (
        0,
        "vagrant\n",
    )
