"""One booted machine with bashd installed as its service, and two login users."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.systemd.machine import Machine, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.stage import Install

MEMBERS = ("alice", "carol")
"""In the group bashd."""
STRANGER = "bob"
"""Not in it."""


@dataclass
class Served:
    """A machine with bashd installed."""

    machine: Machine
    python: str
    """Runs bashd in there."""

    def bashd(self, *arguments: str) -> str:
        """Run ``bashd ARGUMENTS…`` as root and return its stdout; it must succeed."""
        return self.machine.check(self.python, "-P", "-m", "bashd", *arguments)

    def run_as(self, user: str, *arguments: str) -> tuple[int, str]:
        """Run ``bashd ARGUMENTS…`` as a login of *user*; returns status and output."""
        login = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        home = f"/home/{user}"
        clean = ["env", "-i", "-C", home, f"HOME={home}", f"USER={user}"]
        argv = [*login, "--", *clean, "PATH=/usr/bin:/bin", self.python, "-P"]
        done = self.machine.run(*argv, "-m", "bashd", *arguments)
        return done.returncode, done.stdout + done.stderr

    def confined(self, user: str, command: str) -> str:
        """Run a command confined, as *user*; it must succeed."""
        status, output = self.run_as(
            user, *("run", "--no-autostart", "--mode", "workspace-write"), "--", command
        )
        assert status == 0, output
        return output.strip()

    def start_task(self, user: str, command: str) -> str:
        """Start a background task; returns its id."""
        background = ("run", "--no-autostart", "--mode", "workspace-write")
        status, output = self.run_as(user, *background, "--background", "--", command)
        assert status == 0, output
        return output.split()[0]

    def tasks(self, user: str) -> dict[str, dict[str, Any]]:
        """Return a user's tasks by id."""
        status, output = self.run_as(user, "ps", "--all", "--json", "--no-autostart")
        assert status == 0, output
        return {task["task_id"]: task for task in json.loads(output)["tasks"]}

    @property
    def main_pid(self) -> str:
        """Pid of the service as the machine's systemd knows it; "0": none."""
        return self.machine.show("bashd.service", "MainPID")

    def journal(self) -> list[dict[str, Any]]:
        """Return what the service has written to the journal since boot."""
        text = self.machine.check("journalctl", "-u", "bashd.service", "-o", "json")
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="session")
def bootable() -> None:
    """Skip where no systemd can be booted."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def fresh(bootable: None, install: Install) -> Iterator[Served]:
    """A machine on which bashd is not installed yet."""
    with Machine() as machine:
        yield Served(machine, install.python)


@pytest.fixture(scope="module")
def served(fresh: Served) -> Served:
    """A machine with bashd installed and three login users."""
    fresh.bashd("install", "--system")
    for user in (*MEMBERS, STRANGER):
        groups = ["-G", "bashd"] if user in MEMBERS else []
        fresh.machine.check("useradd", "-m", "-s", "/bin/bash", *groups, user)
    return fresh


@pytest.fixture
def running(served: Served) -> Served:
    """The same with the service up and without tasks of former tests."""
    served.machine.check("systemctl", "reset-failed", "bashd.service", "bashd.socket")
    served.machine.check("systemctl", "stop", "bashd.service")
    served.machine.check("systemctl", "start", "bashd.socket", "bashd.service")
    return served
