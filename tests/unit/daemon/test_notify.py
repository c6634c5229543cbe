"""Speaking to a service manager that the test plays, and nothing where there is none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bashd.daemon.notify import Notifier, PassedFd, take_passed_fds


class Manager:
    """The receiving end of sd_notify."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address[0] == "@" else address)
        self.socket.settimeout(5)

    def hear(self) -> dict[str, str]:
        lines = self.socket.recv(4096).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_state_reaches_the_manager(tmp_path: Path, kind: str):
    address = str(tmp_path / "notify")
    if kind == "abstract":
        address = f"@bashd-test-notify-{os.getpid()}"
    manager = Manager(address)
    environ = {"NOTIFY_SOCKET": address}
    notifier = Notifier(environ)
    notifier.ready("listening")
    said = manager.hear()
    assert said == {
        "READY": "1",
        "STATUS": "listening",
        "MAINPID": str(os.getpid()),
    }
    notifier.alive()
    assert manager.hear() == {"WATCHDOG": "1"}
    notifier.stopping()
    assert manager.hear()["STOPPING"] == "1"
    notifier.close()
    manager.socket.close()


def test_a_reload_carries_the_time_at_which_it_began(tmp_path: Path):
    manager = Manager(str(tmp_path / "notify"))
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    said = manager.hear()
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert said["RELOADING"] == "1"
    assert before <= int(said["MONOTONIC_USEC"]) <= after
    notifier.close()
    manager.socket.close()


def test_what_is_started_later_cannot_speak_for_the_daemon(tmp_path: Path):
    manager = Manager(str(tmp_path / "notify"))
    environ = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": str(os.getpid()),
        "PATH": "/bin",
    }
    notifier = Notifier(environ)
    assert environ == {"PATH": "/bin"}
    assert notifier.watchdog_s == pytest.approx(30)
    notifier.close()
    manager.socket.close()


def test_a_watchdog_that_is_another_process_s_is_not_ours():
    environ = {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}
    assert Notifier(environ).watchdog_s is None


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "relative", "@"])
def test_without_a_manager_nothing_happens(address: str):
    notifier = Notifier({"NOTIFY_SOCKET": address})
    notifier.ready("x")
    notifier.alive()
    notifier.close()


def test_a_manager_that_does_not_read_does_not_stop_the_daemon(tmp_path: Path):
    manager = Manager(str(tmp_path / "notify"))
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    for _ in range(10_000):
        notifier.alive()
    notifier.close()
    manager.socket.close()


_PRINT_PASSED = """
import os
from bashd.daemon.notify import take_passed_fds
os.environ["LISTEN_PID"] = str(os.getpid())
for passed in take_passed_fds(os.environ):
    print(passed.name, os.get_inheritable(passed.fd), os.readlink(f"/dev/fd/{passed.fd}"))
print([name for name in os.environ if name.startswith("LISTEN_")])
"""


def test_passed_descriptors_are_taken_with_their_names_and_not_handed_on():
    # In a process of its own: the protocol fixes the numbers, from 3 on.
    done = subprocess.run(
        [
            *("/bin/sh", "-c", 'exec "$@" 3</etc/passwd 4</etc/group', "sh"),
            *(sys.executable, "-c", _PRINT_PASSED),
        ],
        env={"LISTEN_FDS": "2", "LISTEN_FDNAMES": "bashd.socket:other"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "bashd.socket False /etc/passwd",
        "other False /etc/group",
        "[]",
    ]


def test_descriptors_for_another_process_are_not_ours():
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "HOME": "/"}
    assert take_passed_fds(environ) == ()
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize("count", ["", "x", "-1", "1.5"])
def test_a_count_that_is_none_passes_nothing(count: str):
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count}
    assert take_passed_fds(environ) == ()


def test_nothing_passed_is_the_usual_case():
    assert take_passed_fds({}) == ()
    assert PassedFd(3, "x").fd == 3
