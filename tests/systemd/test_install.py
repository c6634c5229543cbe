"""`bashd install` and `uninstall` on a machine that has neither seen yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.systemd.conftest import Served

pytestmark = pytest.mark.slow

TRACES = r"""
find /etc /usr /var /run -xdev -path /var/tmp -prune -o -name '*bashd*' -print |
    grep -v /bashd-t | sort || true
find /etc -maxdepth 1 -type d; find /usr/local/share/man -type d
getent group bashd || true
systemctl list-units --all --plain --no-legend '*bashd*'
systemctl list-unit-files --no-legend '*bashd*' || true
"""
"""Files, group and units: everything on the machine that bears the name, and the
folders that others share with it."""


def test_a_dry_run_says_what_would_be_done_and_does_nothing(fresh: Served):
    before = fresh.machine.shell(TRACES)
    said = fresh.bashd("install", "--system", "--dry-run")
    assert "would write /etc/systemd/system/bashd.service" in said
    assert "would run systemctl enable --now bashd.socket" in said
    assert fresh.machine.shell(TRACES) == before


def test_nothing_is_left_after_uninstalling(fresh: Served):
    before = fresh.machine.shell(TRACES)
    fresh.bashd("install", "--system")
    fresh.machine.check("useradd", "-m", "-G", "bashd", "dora")
    assert fresh.confined("dora", "echo works") == "works"
    task = fresh.start_task("dora", "while :; do echo tick; sleep 0.1; done")
    assert task == "bash-1"
    said = fresh.bashd("uninstall", "--system")
    assert "removed /etc/systemd/system/bashd.service" in said
    assert fresh.machine.shell(TRACES) == before
    assert fresh.machine.run("pgrep", "-u", "dora").stdout == ""
    fresh.machine.check("userdel", "-r", "dora")


def test_installing_twice_is_installing_once(fresh: Served):
    fresh.bashd("install", "--system")
    traces = fresh.machine.shell(TRACES)
    said = fresh.bashd("install", "--system")
    assert "unchanged /etc/systemd/system/bashd.service" in said
    assert fresh.machine.shell(TRACES) == traces
    fresh.bashd("uninstall", "--system")


def test_what_the_administrator_wrote_stays_unless_purged(fresh: Served):
    fresh.bashd("install", "--system")
    fresh.machine.shell("mkdir -p /etc/bashd; echo '[limits]' >/etc/bashd/bashd.toml")
    assert "kept /etc/bashd" in fresh.bashd("uninstall", "--system")
    fresh.machine.check("test", "-f", "/etc/bashd/bashd.toml")
    fresh.bashd("uninstall", "--system", "--purge")
    assert fresh.machine.run("test", "-e", "/etc/bashd").returncode != 0


def test_a_users_own_service_runs_under_their_own_systemd(fresh: Served):
    machine = fresh.machine
    machine.check("useradd", "-m", "-s", "/bin/bash", "erin")
    uid = machine.check("id", "-u", "erin")
    machine.check("loginctl", "enable-linger", "erin")
    machine.wait_for(f"test -S /run/user/{uid}/systemd/private")
    bashd = f"XDG_RUNTIME_DIR=/run/user/{uid} {fresh.python} -P -m bashd"
    try:
        said = machine.check("su", "-", "erin", "-c", f"{bashd} install --user")
        assert "ran systemctl --user enable --now bashd.socket" in said
        run = f"{bashd} run --no-autostart --mode workspace-write -- 'id -un'"
        assert machine.check("su", "-", "erin", "-c", run) == "erin"
        ctl = f"XDG_RUNTIME_DIR=/run/user/{uid} systemctl --user"
        is_active = f"{ctl} is-active bashd.service"
        assert machine.check("su", "-", "erin", "-c", is_active) == "active"
        machine.check("su", "-", "erin", "-c", f"{bashd} uninstall --user")
        left = machine.check("find", "/home/erin", "-path", "*systemd*bashd*")
        assert left == ""
        assert machine.run("test", "-e", f"/run/user/{uid}/bashd/bashd.sock").returncode
    finally:
        machine.check("loginctl", "disable-linger", "erin")


def test_an_ordinary_user_cannot_install_for_all(fresh: Served):
    fresh.machine.check("useradd", "-m", "frank")
    status, said = fresh.run_as("frank", "install", "--system")
    assert status == 125
    assert "needs root" in said


@pytest.mark.parametrize("place", ["/home/frank", "/tmp"])
def test_code_that_others_can_change_is_not_made_a_service(fresh: Served, place: str):
    # -E and no -P: the folder of the code is where it starts, as with a pip install
    # --target; everything else is as it was.
    fresh.machine.shell(
        f"id frank >/dev/null 2>&1 || useradd -m frank; mkdir -p {place}/code;"
        f" cp -r $({fresh.python} -P -c 'import bashd,os;"
        f"print(os.path.dirname(bashd.__file__))') {place}/code/;"
        f" chown -R frank {place}/code"
    )
    done = fresh.machine.run(
        *("env", f"PYTHONPATH={place}/code", fresh.python, "-P", "-m", "bashd"),
        *("install", "--system"),
    )
    assert done.returncode == 125, done.stdout
    assert "root's alone" in done.stderr
    assert fresh.machine.run(
        "test", "-e", "/etc/systemd/system/bashd.service"
    ).returncode
