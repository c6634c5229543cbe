"""From nothing to a confined command of a login user, and back to nothing.

What is typed is what the README says, in its order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.labs.conftest import MINUTES
from tests.labs.stranger import BASHD

if TYPE_CHECKING:
    from tests.labs.stranger import Stranger

pytestmark = [pytest.mark.lab, pytest.mark.timeout(30 * MINUTES)]


def test_a_stranger_installs_uses_and_removes_it(stranger: Stranger):
    shown = stranger.root("./dev run")
    assert shown.endswith("All as it should be."), shown
    again = stranger.root("./dev run")
    assert "installing" not in again, "what is there is not installed twice"

    stranger.machine.check("useradd", "-m", "-s", "/bin/bash", "alice")
    stranger.machine.check("useradd", "-m", "-s", "/bin/bash", "bob")
    before = stranger.files()
    planned = stranger.root(f"{BASHD} install --system --dry-run")
    assert stranger.files() == before
    done = stranger.root(f"{BASHD} install --system")
    assert "ran systemctl enable --now bashd.socket" in done
    assert len(done.splitlines()) == len(planned.splitlines())
    stranger.root("usermod -aG bashd alice")

    served = "run --no-autostart --mode workspace-write --"
    # Found without a path, by a daemon of root's that the first command starts.
    said = stranger.login("alice", f"bashd {served} 'id -un; echo in >kept; cat kept'")
    assert said == (0, "alice\nin\n")
    status, output = stranger.login("alice", f"bashd {served} 'echo no >/etc/motd'")
    assert status == 1
    assert "[sandbox: file access denied under workspace-write mode]" in output
    assert stranger.login("alice", "bashd status")[0] == 0
    # Full confinement is 0; partial, where the kernel has less, is 1.
    assert stranger.login("alice", "bashd doctor")[0] in (0, 1)
    assert stranger.login("bob", f"bashd {served} true")[0] == 125
    task = stranger.login("alice", "bashd run --background -- 'sleep 600'")
    assert task == (0, "bash-1\n")
    manual = "man -w bashd 2>/dev/null || ls /usr/local/share/man/man1/bashd.1"
    assert stranger.login("alice", manual)[0] == 0

    stranger.root(f"{BASHD} uninstall --system")
    # Her login's own manager, where the distribution starts one, stays a while.
    assert set(stranger.processes("alice")) <= {"systemd", "(sd-pam)"}
    assert stranger.machine.run("getent", "group", "bashd").stdout == ""
    # What is alice's own, and the backups that usermod and groupdel make.
    left = {
        path
        for path in stranger.files() - before
        if not path.startswith("/home/alice/") and not path.endswith("-")
    }
    assert left == set()
