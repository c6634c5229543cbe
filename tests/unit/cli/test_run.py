"""``bashd run`` as a process: what it prints, how it ends, what it sends."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from bashd.core.errors import (
    BashdError,
    SandboxUnavailableError,
    StartError,
)
from tests.unit.client.wire_server import kept, run_result, task_info

if TYPE_CHECKING:
    from tests.unit.client.wire_server import Connection, WireServer


def argv(server: WireServer, *words: str) -> list[str]:
    return [sys.executable, "-m", "bashd", "run", "--socket", str(server.path), *words]


def run(
    server: WireServer, *words: str, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    given: dict[str, Any] = {}
    if "input" not in options:
        given["stdin"] = subprocess.DEVNULL
    return subprocess.run(
        argv(server, *words),
        capture_output=True,
        check=False,
        timeout=40,
        **given,
        **options,
    )


def start(server: WireServer, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL}
    streams |= dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    streams |= options
    return cast(
        "subprocess.Popen[bytes]", subprocess.Popen(argv(server, *words), **streams)
    )


# --- output and exit --------------------------------------------------------------------


def test_output_is_passed_through_byte_for_byte(server: WireServer) -> None:
    done = run(server, r"printf 'a\xff\x1b[0m\0'; printf e\\n >&2")
    assert done.stdout == b"a\xff\x1b[0m\0"
    assert done.stderr == b"e\n"
    assert done.returncode == 0


def test_output_comes_while_the_command_runs(
    server: WireServer, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "gate")
    process = start(server, f"echo first; read -r x < {tmp_path}/gate; echo $x")
    assert process.stdout
    assert process.stdout.readline() == b"first\n"
    (tmp_path / "gate").write_text("second\n")
    assert process.communicate(timeout=40) == (b"second\n", b"")


def test_a_failure_is_the_exit_status_and_a_marker(server: WireServer) -> None:
    done = run(server, "echo out; printf err >&2; exit 7")
    assert done.stdout == b"out\n"
    assert done.stderr == b"err\n[exit code: 7]\n"
    assert done.returncode == 7


def test_a_signal_is_128_and_its_number(server: WireServer) -> None:
    done = run(server, "kill -KILL $$")
    assert done.stderr == b"[killed by signal: SIGKILL]\n"
    assert done.returncode == 137


def test_a_timeout_is_124(server: WireServer) -> None:
    server.handlers["exec.run"] = lambda _c, _i, _p: run_result(
        exit_code=None, signal="SIGTERM", timed_out=True, timeout_ms=100
    )
    done = run(server, "--timeout", "0.1", "sleep 9")
    assert done.stderr == b"[timed out after 100ms]\n[killed by signal: SIGTERM]\n"
    assert done.returncode == 124
    assert server.asked("exec.run")[0]["timeout_ms"] == 100


def test_a_denial_is_marked_on_stderr(server: WireServer) -> None:
    sandbox = {
        "mode": "read-only",
        "denied": True,
        "verdict": "suspected",
        "denials": [],
    }
    server.handlers["exec.run"] = lambda _c, _i, _p: run_result(
        exit_code=1, sandbox=sandbox
    )
    assert run(server, "touch /x").stderr == (
        b"[sandbox: file access denied under read-only mode]\n[exit code: 1]\n"
    )


@pytest.mark.parametrize(
    "error",
    [StartError("no such folder"), SandboxUnavailableError("Install bubblewrap")],
)
def test_a_failure_of_bashd_is_125_and_one_line(
    server: WireServer, error: BashdError
) -> None:
    def fail(_c: object, _i: object, _p: object) -> None:
        raise error

    server.handlers["exec.run"] = fail
    done = run(server, "true")
    assert done.stderr == f"bashd: {error.message}\n".encode()
    assert done.stdout == b""
    assert done.returncode == 125
    done = run(server, "--json", "true")
    assert done.stderr == b""
    assert json.loads(done.stdout) == {
        "error": {"code": error.code, "message": error.message}
    }
    assert done.returncode == 125


def test_words_that_make_no_sense_are_125_too(server: WireServer) -> None:
    done = run(server, "--mode", "root", "true")
    assert done.returncode == 125
    assert b"modes are read-only" in done.stderr
    done = run(server, "--json", "--frob", "true")
    assert json.loads(done.stdout)["error"]["code"] == "INVALID_PARAMS"
    assert server.requests == []


def test_json_is_the_result_and_nothing_else(server: WireServer) -> None:
    done = run(server, "--json", "echo out; echo err >&2; exit 3")
    assert done.stderr == b""
    assert done.returncode == 3
    result = json.loads(done.stdout)
    assert result["exit_code"] == 3
    assert result["stdout"]["text"] == "out\n"
    assert result.keys() == run_result().keys()
    assert (
        "stream" not in server.asked("exec.run")[0]
        or not (server.asked("exec.run")[0]["stream"])
    )


def test_a_daemon_that_dies_is_125(server: WireServer) -> None:
    server.handlers["exec.run"] = lambda _c, _i, _p: server.drop_clients()
    done = run(server, "true")
    assert done.returncode == 125
    assert b"closed the connection" in done.stderr


def test_no_daemon_is_125_and_says_how_to_start_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bashd", "run", "--no-autostart", "true"],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 125
    assert b"start one with: bashd serve" in done.stderr


# --- what is sent -----------------------------------------------------------------------


def test_the_request_says_where_and_with_which_environment(
    server: WireServer, tmp_path: Path
) -> None:
    server.handlers["exec.run"] = lambda _c, _i, _p: run_result()
    env = {"PATH": os.environ["PATH"], "MY_TOKEN": "x", "KEPT": "1"}
    run(
        server,
        *("--mode", "workspace-write", "--policy", "ci", "--env", "API_KEY=given"),
        *("--", "echo", "a b"),
        env=env,
        cwd=tmp_path,
    )
    (params,) = server.asked("exec.run")
    assert params["command"] == "echo 'a b'"
    assert params["cwd"] == str(tmp_path)
    assert params["mode"] == "workspace-write"
    assert params["policy"] == "ci"
    assert params["env"] == {"API_KEY": "given"}
    assert params["ambient"]["KEPT"] == "1"
    assert "MY_TOKEN" not in params["ambient"]
    assert "MY_TOKEN" in params["env_removed"]


def test_a_relative_cwd_is_made_absolute_and_not_normalised(
    server: WireServer, tmp_path: Path
) -> None:
    server.handlers["exec.run"] = lambda _c, _i, _p: run_result()
    run(server, "--cwd", "link/..", "true", cwd=tmp_path)
    assert server.asked("exec.run")[0]["cwd"] == f"{tmp_path}/link/.."


def test_a_session_takes_no_folder(server: WireServer) -> None:
    server.handlers["exec.run"] = lambda _c, _i, _p: run_result()
    run(server, "--session", "s9", "true")
    (params,) = server.asked("exec.run")
    assert params["session_id"] == "s9"
    assert "cwd" not in params


def test_a_folder_that_is_gone_is_said_to_be(
    server: WireServer, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    env = os.environ | {"BASHD_SOCKET": str(server.path)}
    command = f"cd {gone}; rmdir {gone}; exec {sys.executable} -m bashd run true"
    done = subprocess.run(
        ["bash", "-c", command],
        env=env | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 125
    assert b"current folder no longer exists" in done.stderr


def test_the_handshake_costs_no_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        words = [sys.executable, "-m", "bashd", "run", "--socket", str(path), "true"]
        process = subprocess.Popen(words)
        connection, _ = listener.accept()
        with connection:
            # Both requests come although neither has been answered.
            said = b""
            while said.count(b"\n") < 2:
                said += connection.recv(65536)
            ids = [json.loads(line)["id"] for line in said.splitlines()]
            for request_id, result in zip(
                ids, ({"protocol": 1}, run_result()), strict=True
            ):
                answer = {"jsonrpc": "2.0", "id": request_id, "result": result}
                connection.sendall(json.dumps(answer).encode() + b"\n")
            assert process.wait(40) == 0


# --- stdin ------------------------------------------------------------------------------


def test_without_stdin_the_command_reads_nothing(server: WireServer) -> None:
    done = run(server, "cat; test -c /dev/stdin && echo device", input=b"not this")
    assert done.stdout == b"device\n"


def test_stdin_is_forwarded_to_its_end(server: WireServer) -> None:
    data = bytes(range(256)) * 2000
    done = run(server, "--stdin", "cat", input=data)
    assert done.stdout == data


def test_stdin_is_forwarded_as_it_comes(server: WireServer) -> None:
    process = start(server, "--stdin", "read -r a; echo $a; cat", stdin=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"one\n"
    assert process.communicate(b"two\n", timeout=40) == (b"two\n", b"")


def test_a_command_that_does_not_read_its_stdin_ends_all_the_same(
    server: WireServer,
) -> None:
    done = run(server, "--stdin", "exit 7", input=b"x" * 1_000_000)
    assert done.returncode == 7


def test_stdin_is_read_no_faster_than_the_daemon_takes_it(server: WireServer) -> None:
    held: list[int] = []
    over = threading.Event()

    def never_takes(_c: object, _i: object, params: dict[str, Any]) -> Any:
        held.append(len(params["data_b64"]))
        over.wait()
        return {}

    server.handlers["exec.stdin"] = never_takes
    read_fd, write_fd = os.pipe()
    process = start(server, "--stdin", "echo up; sleep 60", stdin=read_fd)
    assert process.stdout
    process.stdout.readline()
    server.wait_asked("exec.run")
    written = os.write(write_fd, b"x" * 4096)
    server.wait_asked("exec.stdin")
    while select.select([], [write_fd], [], 0.1)[1]:
        written += os.write(write_fd, b"x" * 4096)
    # One piece is on its way, the pipe is full, and nothing was read beyond that.
    assert written <= 65536 + 65536
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=40)
    over.set()
    assert len(held) == 1
    os.close(read_fd)
    os.close(write_fd)


# --- background -------------------------------------------------------------------------


def test_background_prints_the_id_alone(server: WireServer) -> None:
    server.handlers["exec.start"] = lambda _c, _i, _p: task_info("bash-4")
    done = run(server, "--background", "--timeout", "1.5", "sleep 9")
    assert done.stdout == b"bash-4\n"
    (params,) = server.asked("exec.start")
    assert params["deadline_ms"] == 1500
    assert "timeout_ms" not in params
    assert json.loads(run(server, "--background", "--json", "x").stdout)["task_id"] == (
        "bash-4"
    )
    assert "deadline_ms" not in server.asked("exec.start")[1]


def test_a_background_task_takes_its_stdin_along(server: WireServer) -> None:
    server.handlers["exec.start"] = lambda _c, _i, _p: task_info("bash-4")
    run(server, "--background", "--stdin", "cat", input=b"\x00\xff")
    assert server.asked("exec.start")[0]["stdin_b64"] == "AP8="


def test_too_much_stdin_for_the_background_is_refused(server: WireServer) -> None:
    done = run(
        server, "--background", "--stdin", "cat", input=b"x" * (8 * 1024 * 1024 + 1)
    )
    assert done.returncode == 125
    assert b"at most 8 MiB" in done.stderr
    assert server.asked("exec.start") == []


# --- signals and readers that leave -----------------------------------------------------


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_signal_cancels_and_the_command_may_clean_up(
    server: WireServer, number: signal.Signals, status: int
) -> None:
    process = start(server, "trap 'echo bye; exit 0' TERM; echo up; sleep 60 & wait")
    assert process.stdout
    process.stdout.readline()
    process.send_signal(number)
    out, err = process.communicate(timeout=40)
    assert out == b"bye\n"
    assert err == b""
    assert process.returncode == status
    assert [cancel["force"] for cancel in server.asked("exec.cancel")] == [False]


def test_a_second_signal_forces(server: WireServer) -> None:
    process = start(server, "trap '' TERM; echo up; while :; do sleep 60; done")
    assert process.stdout
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    server.wait_asked("exec.cancel", 1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=40)
    assert process.returncode == 130
    assert err == b"[killed by signal: SIGKILL]\n"
    assert [cancel["force"] for cancel in server.asked("exec.cancel")] == [False, True]


def test_a_third_signal_leaves_a_daemon_that_does_not_answer(
    server: WireServer,
) -> None:
    server.handlers["exec.cancel"] = lambda _c, _i, _p: {}
    process = start(server, "echo up; sleep 60")
    assert process.stdout
    process.stdout.readline()
    for count in (1, 2):
        process.send_signal(signal.SIGTERM)
        server.wait_asked("exec.cancel", count)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=40)
    assert process.returncode == 143


def test_a_command_that_ends_by_itself_keeps_its_status_despite_a_late_signal(
    server: WireServer, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "gate")

    def deaf(_c: object, _i: object, _p: object) -> Any:
        (tmp_path / "gate").write_text("go\n")
        return {}

    server.handlers["exec.cancel"] = deaf
    process = start(server, f"echo up; read -r x < {tmp_path}/gate; exit 9")
    assert process.stdout
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=40)
    assert process.returncode == 9


def test_an_ignored_interrupt_stays_ignored(server: WireServer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    process = start(
        server,
        f"echo up; read -r x < {tmp_path}/gate; echo $x",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert process.stdout
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    (tmp_path / "gate").write_text("undisturbed\n")
    assert process.communicate(timeout=40)[0] == b"undisturbed\n"
    assert process.returncode == 0


def test_a_reader_that_leaves_cancels_even_a_silent_command(server: WireServer) -> None:
    process = start(server, "echo up; sleep 60")
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(40) == 141
    assert process.stderr
    process.stderr.close()
    assert len(server.asked("exec.cancel")) == 1


def test_a_reader_that_leaves_cancels_an_endless_command(server: WireServer) -> None:
    done = subprocess.run(
        [
            "bash",
            "-c",
            '"$@" | head -1; exit ${PIPESTATUS[0]}',
            "-",
            *argv(server, "yes"),
        ],
        capture_output=True,
        check=False,
        timeout=40,
    )
    assert done.stdout == b"y\n"
    assert done.stderr == b""
    assert done.returncode == 141


def test_a_slow_reader_does_not_keep_a_signal_waiting(server: WireServer) -> None:
    process = start(server, "yes")
    server.wait_asked("exec.run")
    assert process.stdout
    assert process.stdout.read(2) == b"y\n"
    # Nobody reads any more, so the client is in the middle of a write.
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 143
    process.communicate()


def test_a_full_disk_is_said_and_ends_the_command(server: WireServer) -> None:
    with Path("/dev/full").open("wb") as full:
        process = start(server, "echo x; sleep 60", stdout=full)
        _, err = process.communicate(timeout=40)
    assert process.returncode == 125
    assert err == b"bashd: cannot write the output: No space left on device\n"
    assert len(server.asked("exec.cancel")) == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_missing_standard_streams_disturb_nothing(
    server: WireServer, closed: str
) -> None:
    line = f'"$@" {closed}'
    done = subprocess.run(
        ["bash", "-c", line, "-", *argv(server, "echo out; echo err >&2; exit 4")],
        capture_output=True,
        check=False,
        timeout=40,
    )
    assert done.returncode == 4


# --- what did not come live -------------------------------------------------------------


def with_gap(spill_path: str | None, text: str = "") -> Any:
    """Return a handler that sends 'aaa', skips some, sends the end."""

    def handler(connection: Connection, request_id: Any, _: Any) -> Any:
        connection.output(request_id, "stdout", b"aaa", 0)
        connection.output(request_id, "stdout", b"ccc\n", 6)
        stream = {
            "text": text,
            "truncated": True,
            "spill_path": spill_path,
            "bytes": 10,
        }
        return run_result(stdout=stream)

    return handler


def test_output_that_was_dropped_on_the_way_comes_from_the_file(
    server: WireServer, tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    spill.write_bytes(b"aaabbbccc\n")
    server.handlers["exec.run"] = with_gap(str(spill))
    done = run(server, "x")
    assert done.stdout == b"aaabbbccc\n"
    assert done.stderr == b""


def test_output_that_is_lost_is_said_to_be(server: WireServer) -> None:
    server.handlers["exec.run"] = with_gap(None)
    done = run(server, "x")
    assert done.stdout == b"aaa"
    assert done.stderr == b"[output truncated; full output: (unavailable)]\n"


def test_output_that_only_the_result_has_is_printed(server: WireServer) -> None:
    server.handlers["exec.run"] = lambda _c, _i, _p: run_result(
        stdout=kept("short é\n".encode())
    )
    assert run(server, "x").stdout == "short é\n".encode()


# --- terminals --------------------------------------------------------------------------


def test_on_a_terminal_controls_are_visible_and_markers_stand_alone(
    server: WireServer,
) -> None:
    master, slave = pty.openpty()
    process = start(server, r"printf '\e[2Jx'; exit 3", stdout=slave, stderr=slave)
    assert process.wait(40) == 3
    os.close(slave)
    assert os.read(master, 4096) == b"\\x1b[2Jx\r\n[exit code: 3]\r\n"
    os.close(master)


# --- thin -------------------------------------------------------------------------------


def test_the_way_to_a_result_loads_nothing_heavy(server: WireServer) -> None:
    server.handlers["exec.run"] = lambda _c, _i, _p: run_result()
    script = (
        "import sys; from bashd.cli.main import main; "
        f"main(['run', '--socket', {str(server.path)!r}, 'true']); "
        "print('\\n'.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    heavy = {
        *("argparse", "dataclasses", "inspect", "pathlib", "subprocess", "typing"),
        *("asyncio", "anyio", "trio", "msgspec", "logging", "shlex", "contextlib"),
        *("bashd.core.model", "bashd.protocol.messages", "bashd.client.sync"),
    }
    assert heavy & set(done.stdout.split()) == set()
