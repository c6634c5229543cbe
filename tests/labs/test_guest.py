"""Old kernels, no Landlock, and limits, on kernels that are really like that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.labs.conftest import MINUTES
from tests.labs.guest import make_guest, why_not
from tests.labs.roots import DEBIAN_12

if TYPE_CHECKING:
    from pathlib import Path

    from tests.labs.guest import Guest

Facts = dict[str, Any]

pytestmark = [pytest.mark.lab, pytest.mark.timeout(45 * MINUTES)]

NO_LANDLOCK = "lsm=capability,yama,apparmor"


@pytest.fixture(scope="module")
def guest(lab_folder: Path) -> Guest:
    """Debian 12 on its own kernel, Linux 6.1."""
    reason = why_not(DEBIAN_12)
    if reason is not None:
        pytest.skip(reason)
    return make_guest(DEBIAN_12, lab_folder)


@pytest.fixture(scope="module")
def old(guest: Guest) -> Facts:
    """What is found where Landlock is of the second version."""
    return guest.run()


@pytest.fixture(scope="module")
def bare(guest: Guest) -> Facts:
    """What is found where the kernel has no Landlock."""
    return guest.run(NO_LANDLOCK)


def test_the_kernel_is_the_one_that_is_meant(old: Facts, bare: Facts):
    assert old["release"].startswith("6.1.")
    assert (old["abi"], bare["abi"]) == (2, 0)


@pytest.mark.parametrize("runner", ["bwrap", "landlock"])
def test_an_old_landlock_holds_and_says_what_it_does_not(old: Facts, runner: str):
    answer = old[f"{runner}: writes"]
    assert answer["stdout"]["text"] == "in\n", answer
    assert answer["exit_code"] != 0
    assert old[f"{runner}: canary"] == "precious\n"
    assert old[f"{runner}: truncates"]["exit_code"] != 0
    assert old[f"{runner}: canary after"] == "precious\n"
    assert answer["sandbox"]["denied"] is True
    assert answer["sandbox"]["enforcement"] == "partial"
    assert old[f"{runner}: doctor"]["status"] == 1
    assert "partial" in old[f"{runner}: doctor"]["said"]
    assert "truncat" in old[f"{runner}: doctor"]["said"]


def test_no_landlock_leaves_the_mounts_and_that_is_said(bare: Facts):
    answer = bare["bwrap: writes"]
    assert answer["stdout"]["text"] == "in\n", answer
    assert answer["exit_code"] != 0
    assert bare["bwrap: canary"] == "precious\n"
    assert bare["bwrap: canary after"] == "precious\n"
    assert answer["sandbox"]["enforcement"] == "partial"


def test_no_landlock_and_no_bubblewrap_is_a_refusal(bare: Facts):
    for what in ("writes", "truncates"):
        assert bare[f"landlock: {what}"]["error"]["code"] == "SANDBOX_UNAVAILABLE"
    assert bare["landlock: canary after"] == "precious\n"
    assert bare["landlock: doctor"]["status"] == 2


def test_root_is_refused_a_cell_without_landlock(old: Facts, bare: Facts):
    assert old["bwrap: root"]["stdout"]["text"] == "0\n"
    assert bare["bwrap: root"]["error"]["code"] == "SANDBOX_UNAVAILABLE"


def test_a_command_beyond_its_memory_is_killed_and_that_is_said(old: Facts):
    answer = old["own: eats"]
    assert (answer["signal"], answer["stdout"]["text"]) == ("SIGKILL", ""), answer
    assert answer["usage"]["oom_killed"] is True
    assert old["own: after"]["stdout"]["text"] == "alive\n"
    assert old["own: after"]["usage"]["oom_killed"] is False


def test_processes_are_counted_for_each_command(old: Facts):
    why, made = old["own: forks"]["stdout"]["text"].splitlines()
    assert "Resource temporarily unavailable" in why
    assert 20 < int(made) < 40, old["own: forks"]


def test_under_an_old_systemd_each_process_has_its_limit(old: Facts):
    # Before systemd 254 a service that delegates cannot limit what it starts.
    answer = old["service: eats"]
    assert answer["exit_code"] != 0
    assert "MemoryError" in answer["stderr"]["text"], answer
    assert old["service: after"]["stdout"]["text"] == "alive\n"


def test_a_stop_leaves_no_group(old: Facts):
    assert old["service: group after stop"] is False
    assert old["own: groups after stop"] == []
