"""The daemon's own program: options, failures, readiness, activation, signals."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bashd.daemon.main import parse_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_REPOSITORY = Path(__file__).parents[3]


class Program:
    """``python -m bashd.daemon`` with folders of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "run" / "b.sock"
        self.config = folder / "bashd.toml"
        self.configure()
        self.running: list[subprocess.Popen[str]] = []

    def configure(self, text: str = "") -> None:
        state = f'[daemon]\nstate_dir = "{self.folder}/state"\n'
        self.config.write_text(text or state)

    def start(
        self, *options: str, prefix: tuple[str, ...] = (), **env: str
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                *(*prefix, sys.executable, "-P", "-m", "bashd.daemon"),
                *("--config", str(self.config), *options),
            ],
            cwd=_REPOSITORY,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), **env},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    def serve(self, *options: str) -> subprocess.Popen[str]:
        """Start on `socket` and wait until it says that it listens."""
        process = self.start("--socket", str(self.socket), *options)
        assert process.stderr is not None
        assert f"listening on {self.socket}" in process.stderr.readline()
        return process

    def ask(self, method: str) -> object:
        """Send one request and return its result."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(self.socket))
            for number, name in enumerate(("initialize", method)):
                params = {"protocol": 1} if name == "initialize" else {}
                message = {"jsonrpc": "2.0", "id": number, "method": name}
                sock.sendall(json.dumps({**message, "params": params}).encode() + b"\n")
            with sock.makefile() as lines:
                return [json.loads(lines.readline())["result"] for _ in range(2)][1]

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.close()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end; return the status and what it said on stderr."""
    _, said = process.communicate(timeout=30)
    return process.returncode, said


# Failures are one line that says what to do


def test_a_wrong_configuration_is_one_line_and_status_2(program: Program):
    program.configure("[executor]\ntimeout_ms = -1\n")
    status, said = ended(program.start("--socket", str(program.socket)))
    assert status == 2
    assert said.count("\n") == 1
    assert str(program.config) in said
    assert "executor.timeout_ms" in said
    assert "must be a positive finite number" in said
    assert not program.socket.parent.exists()


def test_a_group_that_does_not_exist_is_named(program: Program):
    if os.geteuid() != 0:
        pytest.skip("only a root daemon has a group")
    program.configure('[daemon]\ngroup = "no-such-group-here"\n')
    status, said = ended(program.start("--socket", str(program.socket)))
    assert status == 2
    assert "daemon.group" in said
    assert "groupadd" in said


@pytest.mark.parametrize(
    "options", [("--idle-exit", "0"), ("--idle-exit", "nan"), ("--no-such",)]
)
def test_a_wrong_option_is_status_2(options: tuple[str, ...]):
    with pytest.raises(SystemExit) as caught:
        parse_options(options)
    assert caught.value.code == 2


def test_a_socket_path_too_long_is_one_line_and_status_1(program: Program):
    status, said = ended(program.start("--socket", f"{program.folder}/{'x' * 108}"))
    assert status == 1
    assert said.count("\n") == 1
    assert "--socket" in said


def test_a_second_daemon_on_a_socket_says_so_and_leaves(program: Program):
    first = program.serve()
    status, said = ended(program.start("--socket", str(program.socket)))
    assert status == 1
    assert said == f"bashd: error: bashd already runs on {program.socket}\n"
    assert program.ask("daemon.status")
    first.terminate()
    assert ended(first)[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_refuses_modules_from_where_everybody_can_write(program: Program):
    anybody = program.folder / "anybody"
    anybody.mkdir()
    anybody.chmod(0o1777)
    status, said = ended(program.start(PYTHONPATH=str(anybody)))
    assert status == 1
    assert f"modules are imported from {anybody}" in said


# Readiness


@pytest.fixture
def ready_pipe() -> tuple[int, Callable[[], str]]:
    """A write end to pass on, and a function that reads what was said."""
    read_fd, write_fd = os.pipe()
    os.set_inheritable(write_fd, True)

    def read() -> str:
        os.close(write_fd)
        with os.fdopen(read_fd) as file:
            return file.read()

    return write_fd, read


def start_with(program: Program, fd: int, *options: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "bashd.daemon", "--ready-fd", str(fd)),
            *("--socket", str(program.socket), "--config", str(program.config)),
            *options,
        ],
        cwd=_REPOSITORY,
        pass_fds=[fd],
        stderr=subprocess.PIPE,
        text=True,
    )
    program.running.append(process)
    return process


def test_ready_is_said_once_it_accepts(
    program: Program, ready_pipe: tuple[int, Callable[[], str]]
):
    fd, read = ready_pipe
    process = start_with(program, fd)
    assert read() == "ready\n"
    assert program.ask("daemon.status")
    process.terminate()
    assert ended(process)[0] == 0


def test_the_reason_of_a_failure_is_said_there_too(
    program: Program, ready_pipe: tuple[int, Callable[[], str]]
):
    program.configure("[executor]\ntimeout_ms = 0\n")
    fd, read = ready_pipe
    process = start_with(program, fd)
    said = read()
    assert "executor.timeout_ms" in said
    assert ended(process)[1] == f"bashd: error: {said}"


# The end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0_and_nothing_left(
    program: Program, number: signal.Signals
):
    process = program.serve()
    process.send_signal(number)
    status, said = ended(process)
    assert (status, said) == (0, f"bashd: {number.name}: ending\n")
    assert list(program.socket.parent.iterdir()) == []


def test_a_killed_daemon_is_followed_by_another(program: Program):
    first = program.serve()
    first.kill()
    first.wait()
    assert program.socket.exists()
    second = program.serve()
    assert program.ask("daemon.status")
    second.terminate()
    assert ended(second)[0] == 0


def test_it_leaves_when_idle(program: Program):
    process = program.serve("--idle-exit", "0.2")
    assert ended(process)[0] == 0
    assert list(program.socket.parent.iterdir()) == []


def test_it_leaves_no_folder_of_its_socket_unless_something_is_in_it(program: Program):
    # Nobody said where its state is to be: in a folder of this socket's.
    home = program.folder / "xdg"
    base = Path("/var/lib") if os.geteuid() == 0 else home
    digest = hashlib.sha256(os.fsencode(program.socket)).hexdigest()[:12]
    made = base / "bashd" / f"at-{digest}"
    try:
        for audited, kept in ((False, False), (True, True)):
            program.config.write_text(f"[audit]\nenabled = {str(audited).lower()}\n")
            process = program.start(
                "--socket", str(program.socket), XDG_STATE_HOME=str(home)
            )
            assert process.stderr is not None
            assert "listening" in process.stderr.readline()
            assert made.is_dir()
            process.terminate()
            assert ended(process)[0] == 0
            assert made.exists() == kept
        assert "daemon.stop" in (made / "audit.jsonl").read_text()
    finally:
        subprocess.run(["chmod", "-R", "u+rwX", str(made)], check=True)
        shutil.rmtree(made)


def test_hup_takes_a_changed_configuration_over_and_keeps_a_wrong_one_out(
    program: Program,
):
    process = program.serve()
    assert process.stderr is not None
    program.configure("[executor]\ntimeout_ms = -1\n")
    process.send_signal(signal.SIGHUP)
    assert "nothing was reloaded" in process.stderr.readline()
    program.configure()
    process.send_signal(signal.SIGHUP)
    assert "SIGHUP" in process.stderr.readline()
    # The program is replaced in place: same process, new configuration.
    assert "listening on" in next(iter(process.stderr.readline, ""))
    process.terminate()
    assert ended(process)[0] == 0


# The service manager


def test_a_socket_that_was_passed_is_served_and_left(program: Program):
    program.socket.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as manager:
        manager.bind(str(program.socket))
        manager.listen()
        # What systemd does: descriptor 3, and the pid of the program in LISTEN_PID.
        run = f'export LISTEN_PID=$$; exec "$@" 3<&{manager.fileno()}'
        process = subprocess.Popen(
            [
                *("/bin/bash", "-c", run, "sh"),
                *(sys.executable, "-P", "-m", "bashd.daemon"),
                *("--config", str(program.config), "--idle-exit", "0.5"),
            ],
            cwd=_REPOSITORY,
            env={"PATH": "/usr/bin:/bin", "HOME": "/", "LISTEN_FDS": "1"},
            pass_fds=[manager.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        program.running.append(process)
        assert isinstance(program.ask("daemon.status"), dict)
        status, said = ended(process)
        assert status == 0
        assert f"listening on {program.socket}" in said
        assert program.socket.exists()
