"""``bashd run -t``: a real terminal in the cell, as people at one would use it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.support.stations import Station


class Typist:
    """Somebody at a terminal in which ``bashd run -t`` runs."""

    def __init__(self, station: Station, words: list[str]) -> None:
        self.master, slave = pty.openpty()
        self.size(33, 99)
        self.process = subprocess.Popen(
            station.daemon.caller_argv(
                *("run", "--session", station.client.session.session_id, *words)
            ),
            env=station.environ | {"TERM": "vt220"},
            cwd=station.workspace,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        self.modes = termios.tcgetattr(slave)
        self.slave = slave
        self.seen = ""

    def size(self, rows: int, columns: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def see(self, text: str, within_s: float = 20) -> None:
        """Read until *text* has appeared; what was before it is done with."""
        deadline = time.monotonic() + within_s
        while text not in self.seen:
            left_s = deadline - time.monotonic()
            ready, _, _ = select.select([self.master], [], [], max(left_s, 0))
            assert ready, f"no {text!r} in {self.seen!r}"
            self.seen += os.read(self.master, 4096).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def status(self) -> int:
        """Wait for its end, reading on meanwhile; return the exit status."""
        deadline = time.monotonic() + 20
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 0.05)[0]:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
        return self.process.wait()


@contextlib.contextmanager
def at_terminal(station: Station, *words: str) -> Generator[Typist]:
    typist = Typist(station, [*words])
    try:
        yield typist
    finally:
        typist.process.kill()
        typist.process.wait()
        os.close(typist.master)
        os.close(typist.slave)


def test_command_has_a_terminal_of_its_own_with_our_size_and_type(station: Station):
    command = (
        "test -t 0 && test -t 1 && test -t 2 && tty && stty size && echo $TERM"
        " && echo to-tty > /dev/tty; exit 3"
    )
    with at_terminal(station, "-t", "--", command) as typist:
        typist.see("/dev/pts/")
        typist.see("33 99")
        typist.see("vt220")
        typist.see("to-tty")
        assert typist.status() == 3


def test_ctrl_c_reaches_the_command_and_not_the_client(station: Station):
    command = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.1; done"
    with at_terminal(station, "-t", "--", command) as typist:
        typist.see("ready")
        typist.type("\x03")
        typist.see("caught")
        assert typist.status() == 5


def test_ctrl_c_ends_a_command_that_does_not_care(station: Station):
    with at_terminal(station, "-t", "--", "echo ready; sleep 600") as typist:
        typist.see("ready")
        typist.type("\x03")
        assert typist.status() == 128 + signal.SIGINT


def test_resize_reaches_the_command(station: Station):
    command = (
        "trap 'stty size' WINCH; echo ready; for i in $(seq 100); do sleep 0.1; done"
    )
    with at_terminal(station, "-t", "--", command) as typist:
        typist.see("ready")
        typist.size(20, 40)
        typist.process.send_signal(signal.SIGWINCH)
        typist.see("20 40")


def test_interactive_shell_has_job_control(station: Station):
    shell = "PS1='go> ' exec bash --norc -i"
    with at_terminal(station, "-t", "--", shell) as typist:
        typist.see("go> ")
        typist.type("(echo asleep-$((1+1)); exec sleep 600)\n")
        typist.see("asleep-2")
        typist.type("\x1a")
        typist.see("Stopped")
        # `wait` does not wait for a job that bash has not yet seen going on.
        typist.type("kill %1; while jobs %1; do sleep 0.1; done; echo done-$((1+1))\n")
        typist.see("done-2")
        typist.type("exit 6\n")
        assert typist.status() == 6


def test_keys_are_read_and_end_of_file_is_heard(station: Station):
    with at_terminal(station, "-t", "--", "echo ready; cat; echo over") as typist:
        typist.see("ready")
        typist.type("hello\n")
        typist.see("hello\r\n")
        typist.see("hello\r\n")
        typist.type("\x04")
        typist.see("over")
        assert typist.status() == 0


def test_our_terminal_is_as_it_was_afterwards(station: Station):
    with at_terminal(station, "-t", "--", "stty raw -echo; echo x") as typist:
        assert typist.status() == 0
        assert termios.tcgetattr(typist.slave) == typist.modes


def test_command_without_terminal_still_has_none(station: Station):
    assert station.text(
        "test -t 1 || echo none; echo x 2>&- > /dev/tty || echo no"
    ) == ("none\nno\n")


def test_large_output_arrives_whole(station: Station):
    with at_terminal(station, "-t", "--", "seq 1 20000; echo THE-END") as typist:
        for number in (1, 10_000, 20_000):
            typist.see(f"{number}\r\n")
        typist.see("THE-END")
        assert typist.status() == 0


def test_client_that_is_killed_takes_the_command_with_it(station: Station):
    name = "tty-orphan"
    command = f"exec -a {name} sleep 600"
    with at_terminal(station, "-t", "--", f"echo ready; {command}") as typist:
        typist.see("ready")
        typist.process.kill()
        deadline = time.monotonic() + 20
        while station.processes(name):
            assert time.monotonic() < deadline, "it lives on"
            time.sleep(0.05)


def test_no_default_timeout_but_the_one_that_was_set(station: Station):
    words = ("-t", "--timeout", "1", "--", "echo ready; sleep 600")
    with at_terminal(station, *words) as typist:
        typist.see("ready")
        assert typist.status() == 124


def test_without_a_terminal_it_is_refused(station: Station):
    done = station.daemon.cli("run", "-t", "--", "true", env=station.environ)
    assert done.returncode == 125
    assert "needs a terminal" in done.stderr


@pytest.mark.parametrize("option", ["--json", "--stdin", "--background"])
def test_options_for_programs_are_refused_with_it(station: Station, option: str):
    done = station.daemon.cli("run", "-t", option, "--", "true", env=station.environ)
    assert done.returncode in (2, 125)
    assert "-t is for people" in done.stderr + done.stdout
