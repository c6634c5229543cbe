"""`--host` with a real sshd: the command line as people use it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.remote.sshd import SshServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workspace(server: SshServer) -> Path:
    return server.daemon.make_workspace("far")


def wait_for(condition: Callable[[], object]) -> None:
    # Bounded by the test's own timeout.
    while not condition():
        time.sleep(0.01)


def near_ssh_of(client: subprocess.Popen[str]) -> int:
    """Return the pid of the ssh that a client has started."""
    children = Path(f"/proc/{client.pid}/task/{client.pid}/children")
    wait_for(children.read_text)
    return int(children.read_text().split()[0])


def start(server: SshServer, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        server.near_argv(*words),
        env=server.env(BASHD_HOST=server.url),
        cwd=server.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_command_runs_there_with_its_output_and_status(
    server: SshServer, workspace: Path
) -> None:
    words = ("run", "--host", server.url, "--cwd", str(workspace), "--")
    done = server.cli(*words, "pwd; echo problem >&2; exit 3")
    assert done.stdout == f"{workspace}\n"
    assert done.stderr == "problem\n[exit code: 3]\n"
    assert done.returncode == 3


def test_the_sandbox_there_holds(server: SshServer, workspace: Path) -> None:
    beside = workspace.parent / "beside"
    options = ("--host", server.url, "--cwd", str(workspace))
    for mode in ("read-only", "workspace-write"):
        done = server.cli("run", *options, "--mode", mode, "--", f"echo > {beside}")
        assert done.returncode == 1
        assert f"denied under {mode} mode" in done.stderr
    assert not beside.exists()


def test_environment_and_folder_are_the_far_sides(server: SshServer) -> None:
    done = server.cli(
        *("run", "--host", server.url, "--env", "SENT=on purpose", "--"),
        "pwd; echo ${FAR_SIDE-no} ${NEAR_SIDE-no} $SENT",
        NEAR_SIDE="yes",
    )
    assert done.stdout == f"{server.account.home}\nyes no on purpose\n", done.stderr


def test_a_relative_folder_starts_where_ssh_logs_in(
    server: SshServer, workspace: Path
) -> None:
    done = server.cli("run", "--host", server.url, "--cwd", workspace.name, "--", "pwd")
    assert done.stdout == f"{workspace}\n", done.stderr


def test_the_host_may_come_from_the_environment(server: SshServer) -> None:
    done = server.cli("status", "--json", BASHD_HOST=server.url)
    assert json.loads(done.stdout)["pid"] == server.daemon.pid


def test_an_empty_host_and_a_socket_mean_this_machine(server: SshServer) -> None:
    nowhere = {"BASHD_HOST": "ssh://nowhere.invalid"}
    socket = str(server.daemon.socket)
    assert server.cli("status", "--socket", socket, **nowhere).returncode == 0
    here = server.cli("status", "--host", "", **nowhere, BASHD_SOCKET=socket)
    assert here.returncode == 0


def test_a_socket_beside_a_host_is_over_there(server: SshServer) -> None:
    words = ("status", "--host", server.url, "--socket", "/nonexistent/a b.sock")
    done = server.cli(*words)
    assert done.returncode == 125
    assert f"on {server.url}: no daemon answers on /nonexistent/a b.sock" in done.stderr


def test_stdin_travels(server: SshServer) -> None:
    data = os.urandom(1 << 20)
    done = subprocess.run(
        server.near_argv("run", "--host", server.url, "--stdin", "--", "sha256sum"),
        env=server.env(),
        input=data,
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_64_megabytes_arrive_whole(server: SshServer) -> None:
    command = "head -c 67108864 /dev/zero | tr '\\0' x"
    process = subprocess.Popen(
        server.near_argv("run", "--host", server.url, "--", command),
        env=server.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    size = 0
    with process:
        while data := process.stdout.read(1 << 20):
            assert data.count(b"x") == len(data)
            size += len(data)
    assert process.returncode == 0
    assert size == 64 << 20


def test_ctrl_c_ends_the_command_there_and_its_last_words_arrive(
    server: SshServer,
) -> None:
    command = "trap 'echo bye; exit 0' TERM; echo here; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        server.near_argv("run", "--host", server.url, "--", command),
        env=server.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    # As a terminal does it: to the whole group, and so to ssh.
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "bye\n"
    assert process.returncode == 130


def test_two_sessions_there_are_apart(server: SshServer, workspace: Path) -> None:
    opened = [
        server.cli(
            *("session", "open", "--host", server.url),
            *("--cwd", str(workspace), "--mode", "workspace-write"),
        ).stdout.strip()
        for _ in range(2)
    ]
    host = ("--host", server.url)
    for session in opened:
        server.cli("run", *host, "--session", session, "--", f"echo {session} > /tmp/x")
    seen = [
        server.cli(
            "run", *host, "--session", session, "--", "cat /tmp/x"
        ).stdout.strip()
        for session in opened
    ]
    assert seen == opened
    for session in opened:
        assert server.cli("session", "close", session, *host).returncode == 0


def test_a_background_task_outlives_the_ssh_that_started_and_that_follows_it(
    server: SshServer, workspace: Path
) -> None:
    gate = workspace / "gate"
    os.mkfifo(gate)
    os.chown(gate, server.account.uid, server.account.gid)
    command = f"echo one; read -r line < {gate}; echo $line"
    host = ("--host", server.url)
    started = server.cli("run", *host, "--background", "--", command)
    task = started.stdout.strip()
    logs = start(server, "logs", "-f", task)
    assert logs.stdout is not None
    assert logs.stdout.readline() == "one\n"
    os.kill(near_ssh_of(logs), signal.SIGKILL)
    gate.write_text("two\n")
    # It comes back by itself and reads on where it was.
    assert logs.communicate(timeout=40) == ("two\n", "")
    assert server.cli("wait", task, *host).returncode == 0
    gate.unlink()


def test_a_foreground_command_that_is_cut_off_is_ended_and_its_output_kept(
    server: SshServer, workspace: Path
) -> None:
    mark = f"sleep 77{os.getpid()}"
    client = start(server, "run", "--cwd", str(workspace), f"echo so far; {mark}")
    assert client.stdout is not None
    assert client.stdout.readline() == "so far\n"
    os.kill(near_ssh_of(client), signal.SIGKILL)
    out, err = client.communicate(timeout=30)
    assert client.returncode == 125, (out, err)
    assert "was ended by signal 9" in err
    wait_for(lambda: not server.far_processes(mark.split()[1].encode()))

    found = json.loads(
        server.cli("ps", "--all", "--json", BASHD_HOST=server.url).stdout
    )["tasks"]
    task = next(task for task in found if mark in task["command"])
    assert task["status"] == "killed"
    kept = server.cli("logs", task["task_id"], BASHD_HOST=server.url)
    assert kept.stdout == "so far\n"


def test_nothing_stays_behind_at_either_end(server: SshServer) -> None:
    assert server.cli("run", "--host", server.url, "true").returncode == 0
    wait_for(lambda: not server.far_processes(b"dial-stdio"))


# --- each way it fails ---------------------------------------------------------------


def refused(server: SshServer, url: str | None = None, **env: str) -> str:
    done = server.cli("run", "--host", url or server.url, "--", "true", **env)
    assert done.returncode == 125, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_no_ssh_is_told(server: SshServer) -> None:
    assert "there is no ssh on PATH" in refused(server, PATH="/nonexistent")


def test_an_unknown_host_key_is_told(server: SshServer) -> None:
    server.write_near_config("UserKnownHostsFile /dev/null")
    try:
        said = refused(server)
    finally:
        server.write_near_config()
    assert "the host key of" in said
    assert "is not known; connect once by hand: ssh" in said


def test_a_changed_host_key_is_told(server: SshServer) -> None:
    known = server.folder / "known_hosts"
    kept = known.read_text()
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "other"]
    subprocess.run(words, cwd=server.folder, check=True, capture_output=True)
    other = (server.folder / "other.pub").read_text().rsplit(" ", 1)[0]
    known.write_text(f"{kept.split()[0]} {other}\n")
    try:
        assert "is not the one that is known" in refused(server)
    finally:
        known.write_text(kept)


def test_a_refused_login_is_told(server: SshServer) -> None:
    server.write_near_config("PubkeyAuthentication no")
    try:
        assert "refused the login" in refused(server)
    finally:
        server.write_near_config()


def test_a_host_that_does_not_listen_is_told(server: SshServer) -> None:
    said = refused(server, "ssh://127.0.0.1:1")
    assert "ssh cannot reach ssh://127.0.0.1:1" in said
    assert "Connection refused" in said


def test_a_missing_bashd_is_told(server: SshServer) -> None:
    program = server.folder / "far" / "bashd"
    program.rename(program.with_name("away"))
    try:
        assert "bashd is missing on" in refused(server)
    finally:
        program.with_name("away").rename(program)


def test_a_bashd_that_is_too_old_is_told(server: SshServer) -> None:
    program = server.folder / "far" / "bashd"
    kept = program.read_text()
    program.write_text(
        "#!/bin/sh\necho \"bashd: error: argument COMMAND: invalid choice: 'dial-stdio'"
        '" >&2; exit 2\n'
    )
    try:
        assert "is too old to be reached by ssh" in refused(server)
    finally:
        program.write_text(kept)


def test_a_shell_that_prints_at_its_start_is_told(server: SshServer) -> None:
    program = server.folder / "far" / "bashd"
    kept = program.read_text()
    program.write_text("#!/bin/sh\necho Welcome!; cat\n")
    try:
        assert "must print nothing for commands that come by ssh" in refused(server)
    finally:
        program.write_text(kept)


@pytest.mark.parametrize(
    "url", ["ssh://-oProxyCommand=x", "ssh://h:port", "http://h", "ssh://-l@h", "a b"]
)
def test_what_is_no_address_never_reaches_ssh(server: SshServer, url: str) -> None:
    assert "write ssh://[user@]host[:port]" in refused(server, url)


@pytest.mark.timeout(120)
def test_a_command_there_costs_little_more_than_here_and_an_ssh(
    server: SshServer,
) -> None:
    def time_of(argv: list[str], **env: str) -> float:
        start_s = time.monotonic()
        done = subprocess.run(
            argv,
            env=server.env(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return time.monotonic() - start_s

    ssh = shutil.which("ssh", path=f"{server.folder}/near")
    assert ssh is not None
    address = [f"-p{server.port}", "127.0.0.1"]
    # As ours finds its program over there: the login shell starts a sh that looks.
    find = "sh -c 'command -v env >/dev/null || PATH=$HOME/.local/bin; exec true'"
    ssh_alone = server.daemon.argv_as_caller([ssh, *address, find])
    words = server.near_argv("run", "true")
    # In turns. Two processes of ours and an ssh are about 2.0 times one and an ssh (1.8
    # to 2.2 here), which is the goal; a test leaves the noise of an ssh's keys room.
    bare, here, there = (
        statistics.median(times)
        for times in zip(
            *(
                (
                    time_of(ssh_alone),
                    time_of(words, BASHD_SOCKET=str(server.daemon.socket)),
                    time_of(words, BASHD_HOST=server.url),
                )
                for _ in range(12)
            ),
            strict=True,
        )
    )
    assert there < 2.5 * here + bare, (there, here, bare)
