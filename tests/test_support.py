"""The test infrastructure tells the truth: it sees what it is there to see."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import accounts
from tests.support.accounts import Account, as_user, make_user, remove_user
from tests.support.daemons import toml
from tests.support.enclosure import Enclosure
from tests.support.leaks import snapshot_at_rest, wait_until_settled
from tests.support.marks import (
    is_of_live_session,
    remove_folders_of_dead_sessions,
    session_mark,
    start_tick,
)
from tests.support.stage import REPOSITORY, Install, stage
from tests.support.stations import OWN, Station, on
from tests.support.traces import descriptors, files

HIDE = "setsid --fork sleep 60 >/dev/null 2>&1"
"""Leaves a process with no parent, session or group in common with its origin."""


def test_an_ordinary_user_is_who_it_says_it_is(ordinary_user: Account):
    done = as_user(ordinary_user, ["sh", "-c", "id -u; pwd; echo $HOME; id -G"])
    uid, cwd, home, groups = done.stdout.splitlines()
    assert int(uid) == ordinary_user.uid
    assert cwd == home == str(ordinary_user.home)
    assert str(ordinary_user.gid) in groups.split()


def test_an_ordinary_user_holds_no_capability(ordinary_user: Account):
    if ordinary_user.is_root:
        pytest.skip("run as root without an ordinary user")
    done = as_user(
        ordinary_user, ["grep", "-E", "^Cap(Inh|Prm|Eff|Amb)", "/proc/self/status"]
    )
    assert {line.split()[1] for line in done.stdout.splitlines()} == {"0" * 16}


def test_nothing_of_the_tests_environment_reaches_a_user(ordinary_user: Account):
    done = as_user(ordinary_user, ["env"], env={"GIVEN": "yes"})
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert names <= {*ordinary_user.environment(), "GIVEN", "PWD", "_"}


def test_a_removed_user_leaves_no_process_and_no_file(root_account: Account):
    user = make_user()
    started = as_user(
        user, ["bash", "-c", f"echo x > /dev/shm/{user.name}; {HIDE}"], timeout_s=10
    )
    assert started.returncode == 0
    assert accounts.processes_of(user.uid)
    remove_user(user)
    assert not accounts.processes_of(user.uid)
    assert not Path(f"/dev/shm/{user.name}").exists()
    assert not user.home.exists()
    with pytest.raises(KeyError):
        pwd.getpwnam(user.name)


def test_users_of_a_killed_session_go_and_those_of_a_live_one_stay(
    root_account: Account, ordinary_user: Account
):
    make = "from tests.support.accounts import make_user as m; print(m().name)"
    done = subprocess.run(
        [sys.executable, "-c", make],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    orphan = done.stdout.strip()
    assert pwd.getpwnam(orphan)
    accounts.remove_users_of_dead_sessions()
    with pytest.raises(KeyError):
        pwd.getpwnam(orphan)
    assert pwd.getpwnam(ordinary_user.name)


def test_only_users_of_the_tests_can_be_removed():
    with pytest.raises(ValueError, match="not made by these tests"):
        remove_user(accounts.current_account())


@pytest.fixture(params=["cgroup", "parentage"])
def enclosure(request: pytest.FixtureRequest) -> Enclosure:
    made = Enclosure() if request.param == "cgroup" else Enclosure(use_cgroup=False)
    if request.param == "cgroup" and not made.exact:
        pytest.skip("no cgroup can be made here")
    return made


def test_an_enclosure_sees_children(enclosure: Enclosure, tmp_path: Path):
    process = enclosure.start(
        ["sh", "-c", "sleep 60 & wait"], env={}, cwd="/", log=tmp_path / "log"
    )
    while len(enclosure.pids()) < 2:
        assert process.poll() is None
    left = enclosure.close()
    process.wait()
    assert any("sleep 60" in line for line in left)
    assert not enclosure.pids()


def test_a_cgroup_sees_what_hid_its_descent(tmp_path: Path):
    enclosure = Enclosure()
    if not enclosure.exact:
        pytest.skip("no cgroup can be made here")
    process = enclosure.start(["bash", "-c", HIDE], env={}, cwd="/", log=tmp_path / "l")
    process.wait()
    # One, that is: the shell has ended. It may not have become "sleep" yet.
    assert len(enclosure.close()) == 1
    assert enclosure.cgroup is not None
    assert not enclosure.cgroup.exists()


def test_files_and_descriptors_are_listed(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").touch()
    assert files(tmp_path) == {str(tmp_path / "a"), str(tmp_path / "a" / "b")}
    before = descriptors(os.getpid())
    pair = os.pipe()
    try:
        assert descriptors(os.getpid()) != before
    finally:
        for fd in pair:
            os.close(fd)
    assert descriptors(os.getpid()) == before


def test_the_installed_bashd_serves_every_account(
    install: Install, ordinary_user: Account
):
    done = as_user(
        ordinary_user, [install.python, "-c", "import bashd; print(bashd.__file__)"]
    )
    assert done.stdout.strip().endswith("bashd/__init__.py"), done.stderr


def test_a_staged_copy_does_not_lead_back_to_the_checkout(
    reachable_tmp: Path, ordinary_user: Account
):
    folder = reachable_tmp / f"staged-{secrets.token_hex(4)}"
    folder.mkdir()
    look = "import bashd, trio, prctl; print(bashd.__file__)"
    done = as_user(ordinary_user, [stage(folder), "-c", look])
    shutil.rmtree(folder)
    assert done.stdout.startswith(str(folder)), done.stderr


def test_settings_are_written_as_toml():
    text = toml({"sandbox": {"runner": "bwrap"}, "executor": {"grace_ms": 200}})
    assert text == '[sandbox]\nrunner = "bwrap"\n[executor]\ngrace_ms = 200\n'


def test_a_skip_is_a_failure_in_strict_mode(tmp_path: Path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_a(): pytest.skip('poor machine')\n"
        "@pytest.mark.xfail(strict=True)\n"
        "def test_b(): assert False\n"
    )
    outcomes = {}
    for strict in ("0", "1"):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-p", "tests.support.strict"),
                *("-p", "no:cacheprovider", "-q", str(tmp_path)),
            ],
            env=os.environ
            | {
                "BASHD_TEST_STRICT": strict,
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTHONPATH": str(REPOSITORY),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        outcomes[strict] = (done.returncode, done.stdout)
    assert outcomes["0"][0] == 0
    assert "1 skipped, 1 xfailed" in outcomes["0"][1]
    assert outcomes["1"][0] == 1
    assert "1 failed, 1 xfailed" in outcomes["1"][1]
    assert "poor machine" in outcomes["1"][1]


def test_a_mark_dies_with_its_session(tmp_path: Path):
    process = subprocess.Popen(["sleep", "61"])
    mark = f"{process.pid}t{start_tick(process.pid)}"
    for name in (f"x-{mark}-1", f"x-{session_mark()}-1", "x-other"):
        (tmp_path / name).mkdir()
    try:
        assert is_of_live_session(mark)
        assert not is_of_live_session(f"{process.pid}t1")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not is_of_live_session(mark)
    remove_folders_of_dead_sessions(tmp_path, "x")
    assert {path.name for path in tmp_path.iterdir()} == {
        f"x-{session_mark()}-1",
        "x-other",
    }


@on(OWN)
def test_a_cell_in_the_place_of_another_is_no_leak_and_a_second_one_is(
    station: Station,
):
    kinds = ("processes", "cgroups")
    with station.another() as first:
        first.run("true")
        before = snapshot_at_rest(station.daemon)
        first.sessions.close(first.session.session_id)
    with station.another() as second:
        second.run("true")
        wait_until_settled(station.daemon, before, kinds=kinds)
        with station.another() as third:
            third.run("true")
            with pytest.raises(AssertionError, match="left behind"):
                wait_until_settled(station.daemon, before, kinds=kinds, within_s=0.2)
