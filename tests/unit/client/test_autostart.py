"""Starting a daemon: once for all who ask, with no secrets, and never silently failing.

The daemon here is a few lines of Python that keep the promise of ``bashd serve``: leave
the starter's tree, listen, say so on ``--ready-fd``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bashd
from bashd.client import autostart
from bashd.client.autostart import daemon_environment, serve_argv, start_daemon
from bashd.core.errors import ConnectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PREAMBLE = """
import os, socket, sys, json
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
path, ready = args["--socket"], int(args["--ready-fd"])
here = os.path.dirname(path)
def say(text):
    os.write(ready, text.encode()); os.close(ready)
"""

SERVES = """
with open(here + "/starts", "a") as starts:
    starts.write(str(os.getpid()) + "\\n")
if os.fork(): os._exit(0)
listener = socket.socket(socket.AF_UNIX); listener.bind(path); listener.listen()
with open(here + "/facts", "w") as facts:
    json.dump({"pid": os.getpid(), "sid": os.getsid(0), "cwd": os.getcwd(),
        "env": dict(os.environ),
        "fds": sorted(int(n) for n in os.listdir("/proc/self/fd")),
        "stdin": os.readlink("/proc/self/fd/0"), "stdout": os.readlink("/proc/self/fd/1")},
        facts)
print("log line", file=sys.stderr, flush=True)
say("ready\\n")
signal_end = listener.accept()[0]
while True: listener.accept()
"""

Program = list[str]


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Program]:
    def make(body: str) -> Program:
        script = tmp_path / "daemon.py"
        script.write_text(PREAMBLE + textwrap.dedent(body))
        return [sys.executable, str(script)]

    return make


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A user's environment; ends the daemon that was started under it."""
    yield {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    facts = tmp_path / "run" / "facts"
    if facts.exists():
        os.kill(json.loads(facts.read_text())["pid"], signal.SIGKILL)


def facts_of(folder: Path) -> dict[str, object]:
    return json.loads((folder / "facts").read_text())


def socket_in(tmp_path: Path) -> str:
    return str(tmp_path / "run" / "bashd.sock")


def test_a_daemon_is_started_and_connected_to(
    tmp_path: Path, program: Callable[[str], Program], environ: dict[str, str]
) -> None:
    path = socket_in(tmp_path)
    with start_daemon(path, environ=environ, program=program(SERVES)) as connection:
        assert connection.getpeername() == path
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    facts = facts_of(tmp_path / "run")
    assert facts["cwd"] == "/"
    assert facts["sid"] != os.getsid(0)
    assert facts["stdin"] == facts["stdout"] == "/dev/null"


def test_a_daemon_gets_no_descriptor_of_ours(
    tmp_path: Path, program: Callable[[str], Program], environ: dict[str, str]
) -> None:
    read_fd, write_fd = os.pipe()
    os.set_inheritable(write_fd, True)
    start_daemon(socket_in(tmp_path), environ=environ, program=program(SERVES)).close()
    os.close(write_fd)
    # The end of file comes only if nobody else holds the other end.
    assert os.read(read_fd, 1) == b""
    os.close(read_fd)


def test_clients_at_the_same_instant_find_the_same_daemon(
    tmp_path: Path, program: Callable[[str], Program], environ: dict[str, str]
) -> None:
    path, argv = socket_in(tmp_path), program(SERVES)
    gate = threading.Barrier(4)
    failures: list[BaseException] = []

    def client() -> None:
        try:
            gate.wait()
            start_daemon(path, environ=environ, program=argv).close()
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failures.append(error)

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len((tmp_path / "run" / "starts").read_text().splitlines()) == 1


def test_a_stale_socket_is_no_reason_not_to_start(
    tmp_path: Path, program: Callable[[str], Program], environ: dict[str, str]
) -> None:
    path = socket_in(tmp_path)
    body = "if os.path.exists(path): os.unlink(path)\n" + SERVES
    start_daemon(path, environ=environ, program=program(body)).close()
    pid = int(str(facts_of(tmp_path / "run")["pid"]))
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    # Readable once it is gone, its sockets included.
    select.select([process], [], [])
    os.close(process)
    start_daemon(path, environ=environ, program=program(body)).close()
    assert len((tmp_path / "run" / "starts").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "say('bashd.toml: key `mode` is wrong\\n')",
            "bashd.toml: key `mode` is wrong",
        ),
        ("sys.exit(3)", "it ended before it was ready"),
        ("say('ready\\n')", "ended as soon as it was ready"),
    ],
)
def test_a_daemon_that_does_not_come_up_says_why(
    tmp_path: Path,
    program: Callable[[str], Program],
    environ: dict[str, str],
    body: str,
    says: str,
) -> None:
    with pytest.raises(ConnectError, match=says) as caught:
        start_daemon(socket_in(tmp_path), environ=environ, program=program(body))
    assert "daemon.log" in caught.value.message


def test_a_daemon_that_is_never_ready_is_not_waited_for(
    tmp_path: Path, program: Callable[[str], Program], environ: dict[str, str]
) -> None:
    hangs = program("import signal; signal.pause()")
    with pytest.raises(ConnectError, match=r"not ready after 0\.2 seconds"):
        start_daemon(socket_in(tmp_path), environ=environ, program=hangs, timeout_s=0.2)


def test_a_program_that_is_not_there_is_an_error(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    with pytest.raises(ConnectError, match="cannot be started"):
        start_daemon(socket_in(tmp_path), environ=environ, program=["/no/such"])


def test_the_environment_of_a_daemon_has_what_it_needs_and_no_secret() -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/h",
        "LANG": "C.UTF-8",
        "LC_ALL": "C",
        "XDG_STATE_HOME": "/s",
        "XDG_ACTIVATION_TOKEN": "secret",
        "BASHD_HOME": "/b",
        "BASHD_SOCKET": "/x",
        "TMPDIR": "/t",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "DATABASE_URL": "secret",
        "LD_PRELOAD": "/evil.so",
        "PYTHONPATH": "/workspace",
    }
    kept = daemon_environment(environ)
    assert "secret" not in kept.values()
    kept.pop("PYTHONPATH", None)
    assert kept == {
        "PATH": "/bin",
        "HOME": "/h",
        "LANG": "C.UTF-8",
        "LC_ALL": "C",
        "XDG_STATE_HOME": "/s",
        "BASHD_HOME": "/b",
        "TMPDIR": "/t",
    }


def test_a_daemon_is_of_the_same_installation_and_not_of_the_current_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "bashd").mkdir()
    (tmp_path / "bashd" / "__init__.py").write_text("raise SystemExit('hijacked')")
    python = serve_argv()[: serve_argv().index("-m")]
    done = subprocess.run(
        [*python, "-c", "import bashd; print(bashd.__file__)"],
        env=daemon_environment({"PYTHONPATH": str(tmp_path)}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == bashd.__file__


def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a folder away")
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with pytest.raises(ConnectError, match="belongs to another user"):
        start_daemon(str(folder / "bashd.sock"), program=["/bin/false"])


def test_the_idle_time_is_part_of_the_command() -> None:
    argv = serve_argv()
    assert argv[argv.index("--idle-exit") + 1] == str(autostart.IDLE_EXIT_S)
