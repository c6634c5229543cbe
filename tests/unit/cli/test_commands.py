"""All other subcommands, as processes against a server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest

from bashd import __version__
from bashd.cli.commands import COMMANDS, build_parser
from bashd.cli.ps_cmd import KEYS
from bashd.core.errors import UnknownTaskError
from tests.unit.client.wire_server import task_info

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.client.wire_server import WireServer


def bashd(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bashd", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=40,
        stdin=subprocess.DEVNULL,
        **options,
    )


def at(server: WireServer) -> tuple[str, str]:
    return ("--socket", str(server.path))


# --- ps, logs, wait, kill ---------------------------------------------------------------

TASKS = [
    task_info(
        "bash-1",
        command="make test\nrm -rf /",
        cpu_ms=2500,
        rss_bytes=3 << 20,
        stdout_bytes=2048,
        ports=[8080, 9000],
    ),
    task_info("bash-2", status="completed", exit_code=2, age_s=75),
    task_info("bash-3", status="killed", signal="SIGKILL"),
]


def test_ps_is_a_table_for_people(server: WireServer) -> None:
    server.handlers["task.list"] = lambda _c, _i, _p: {"tasks": TASKS}
    done = bashd("ps", "--all", *at(server))
    assert done.stdout.splitlines() == [
        "TASK    STATUS   AGE    CPU   MEMORY  OUTPUT  PORTS      COMMAND",
        "bash-1  running  1.5s   2.5s  3.0M    2.0K    8080,9000  make test\\nrm -rf /",
        "bash-2  exit 2   1m15s  0.0s  0B      0B      -          true",
        "bash-3  SIGKILL  1.5s   0.0s  0B      0B      -          true",
    ]
    assert server.asked("task.list") == [{"all": True, "session_id": None}]


def test_ps_json_has_exactly_the_documented_keys(server: WireServer) -> None:
    server.handlers["task.list"] = lambda _c, _i, _p: {"tasks": TASKS}
    done = bashd("ps", "--json", "--session", "s1", *at(server))
    tasks = json.loads(done.stdout)["tasks"]
    assert [task["task_id"] for task in tasks] == ["bash-1", "bash-2", "bash-3"]
    assert all(tuple(task) == KEYS for task in tasks)
    assert server.asked("task.list") == [{"all": False, "session_id": "s1"}]


def log_server(server: WireServer, stream: bytes, *, starts_at: int = 0) -> None:
    """Serve *stream* in pieces of four bytes; the task settles after the last."""

    def logs(_c: object, _i: object, params: dict[str, Any]) -> Any:
        offset = max(params["offset"], starts_at)
        data = stream[offset : offset + 4]
        end = offset + len(data)
        return {
            "data_b64": b64encode(data).decode(),
            "offset": offset,
            "next_offset": end,
            "total": len(stream),
            "settled": end == len(stream),
        }

    server.handlers["task.logs"] = logs


def test_logs_prints_all_that_is_kept(server: WireServer) -> None:
    log_server(server, b"one\ntwo\nthree\n")
    done = bashd("logs", "bash-1", *at(server))
    assert (done.stdout, done.stderr, done.returncode) == ("one\ntwo\nthree\n", "", 0)
    assert {call["wait"] for call in server.asked("task.logs")} == {False}
    assert {call["stream"] for call in server.asked("task.logs")} == {"stdout"}


def test_logs_says_what_is_no_longer_kept(server: WireServer) -> None:
    log_server(server, b"one\ntwo\n", starts_at=4)
    done = bashd("logs", "--stderr", "bash-1", *at(server))
    assert done.stdout == "two\n"
    assert done.stderr == "[4 bytes are no longer kept]\n"
    assert server.asked("task.logs")[0]["stream"] == "stderr"


def test_logs_follow_waits_until_the_task_has_settled(server: WireServer) -> None:
    pieces = iter([b"a\n", b"", b"b\n"])
    sent = bytearray()

    def logs(_c: object, _i: object, params: dict[str, Any]) -> Any:
        assert params["wait"]
        assert params["offset"] == len(sent)
        data = next(pieces)
        sent.extend(data)
        return {
            "data_b64": b64encode(data).decode(),
            "offset": params["offset"],
            "next_offset": len(sent),
            "total": len(sent),
            "settled": len(sent) == 4,
        }

    server.handlers["task.logs"] = logs
    assert bashd("logs", "-f", "bash-1", *at(server)).stdout == "a\nb\n"


def test_logs_into_head_is_no_error(server: WireServer) -> None:
    log_server(server, b"line\n" * 2000)
    line = f"{sys.executable} -m bashd logs x --socket {server.path} | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False)
    assert done.stdout == b"line\n"
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("facts", "status", "stderr"),
    [
        ({"status": "completed", "exit_code": 0}, 0, ""),
        ({"status": "completed", "exit_code": 3}, 3, "[exit code: 3]\n"),
        (
            {"status": "killed", "signal": "SIGTERM"},
            143,
            "[status: killed by SIGTERM]\n",
        ),
        ({"status": "killed"}, 125, "[status: killed]\n"),
    ],
)
def test_wait_ends_as_the_task_did(
    server: WireServer, facts: dict[str, Any], status: int, stderr: str
) -> None:
    server.handlers["task.wait"] = lambda _c, _i, _p: task_info("bash-1", **facts)
    done = bashd("wait", "bash-1", *at(server))
    assert (done.returncode, done.stdout, done.stderr) == (status, "", stderr)


def test_kill_says_what_it_found(server: WireServer) -> None:
    server.handlers["task.kill"] = lambda _c, _i, params: {
        "killed": params["task_id"] == "bash-1"
    }
    done = bashd("kill", "bash-1", "bash-2", *at(server))
    assert done.stdout == (
        "killed background task bash-1\ntask bash-2 had already finished\n"
    )
    done = bashd("kill", "bash-1", "bash-2", "--json", *at(server))
    assert json.loads(done.stdout) == {"killed": {"bash-1": True, "bash-2": False}}


@pytest.mark.parametrize("verb", ["kill", "wait", "logs"])
def test_an_unknown_task_is_125(server: WireServer, verb: str) -> None:
    def unknown(_c: object, _i: object, _p: object) -> None:
        raise UnknownTaskError('unknown bash task "bash-9"')

    method = "task.logs" if verb == "logs" else f"task.{verb}"
    server.handlers[method] = unknown
    done = bashd(verb, "bash-9", *at(server))
    assert done.returncode == 125
    assert done.stderr == 'bashd: unknown bash task "bash-9"\n'


# --- session, status --------------------------------------------------------------------


def test_session_open_prints_the_id_alone(server: WireServer) -> None:
    env = os.environ | {"A_SECRET": "x"}
    words = ("--cwd", "/usr/..", "--mode", "read-only", "--approval", "never")
    done = bashd("session", "open", *words, *at(server), env=env)
    assert done.stdout == "s1\n"
    (params,) = server.asked("session.open")
    assert params["cwd"] == "/usr/.."
    assert params["mode"] == "read-only"
    assert params["approval"] == "never"
    assert "A_SECRET" not in params["ambient"]
    assert "A_SECRET" in params["env_removed"]


def test_session_verbs(server: WireServer) -> None:
    listed = bashd("session", "list", *at(server)).stdout.splitlines()
    assert listed[0].split() == ["SESSION", "MODE", "POLICY", "TASKS", "FOLDER"]
    assert listed[1].split() == ["s1", "read-only", "-", "0", "/"]
    shown = bashd("session", "show", "s2", *at(server)).stdout
    assert "session:  s2\n" in shown
    assert "mode:     read-only\n" in shown
    switched = bashd("session", "mode", "s2", "workspace-write", *at(server)).stdout
    assert "mode:     workspace-write (override)\n" in switched
    bashd("session", "mode", "s2", "default", *at(server))
    assert [call["mode"] for call in server.asked("session.set_mode")] == [
        "workspace-write",
        None,
    ]
    server.handlers["session.set_approval"] = server.handlers["session.get"]
    bashd("session", "approval", "s2", "never", *at(server))
    assert server.asked("session.set_approval") == [
        {"session_id": "s2", "approval": "never"}
    ]
    assert bashd("session", "close", "s2", *at(server)).returncode == 0
    assert server.asked("session.close") == [{"session_id": "s2"}]
    asked = json.loads(bashd("session", "list", "--json", *at(server)).stdout)
    assert [info["session_id"] for info in asked["sessions"]] == ["s1", "s2"]


def test_status_tells_which_daemon_and_how_it_is(server: WireServer) -> None:
    done = bashd("status", *at(server))
    assert f"socket:   {server.path}\n" in done.stdout
    assert "up:       1m15s\n" in done.stdout
    assert json.loads(bashd("status", "--json", *at(server)).stdout)["cells"] == 1


def test_status_starts_no_daemon(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = bashd("status", "--json", env=env)
    assert done.returncode == 125
    assert json.loads(done.stdout)["error"]["code"] == "CONNECT_FAILED"
    assert list(tmp_path.iterdir()) == []


# --- serve ------------------------------------------------------------------------------


def serve(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``bashd serve`` where the interpreter it turns into is ``echo``."""
    script = (
        "import sys; sys.executable = '/bin/echo'; "
        f"from bashd.cli.main import main; sys.exit(main(['serve', *{words!r}]))"
    )
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=40,
        **options,
    )


def test_serve_turns_into_the_daemon_with_its_options() -> None:
    assert serve().stdout == "-P -m bashd.daemon\n"
    done = serve("--socket", "/s", "--config", "/c", "--idle-exit", "5")
    assert done.stdout == ("-P -m bashd.daemon --socket /s --config /c --idle-exit 5\n")


def test_serve_hands_on_the_ready_descriptor_and_can_leave_its_caller() -> None:
    read_fd, write_fd = os.pipe()
    done = serve("--detach", "--ready-fd", str(write_fd), pass_fds=[write_fd])
    assert done.returncode == 0
    assert done.stdout == f"-P -m bashd.daemon --ready-fd {write_fd}\n"
    os.close(read_fd)
    os.close(write_fd)


def test_serve_runs_an_existing_program() -> None:
    assert shutil.which("python3")
    done = bashd("serve", "--help")
    assert "listening on PATH" in done.stdout


# --- the whole --------------------------------------------------------------------------


def test_every_command_has_help_with_examples_and_exit_statuses() -> None:
    for name in COMMANDS:
        text = bashd(name, "--help").stdout
        assert text.startswith(f"usage: bashd {name} "), name
        assert "example" in text.lower(), name
        assert "exit status:" in text, name


def test_the_help_lists_every_command() -> None:
    listed = bashd("--help").stdout
    assert all(f"    {name}" in listed for name in COMMANDS)
    assert "examples:" in listed


def test_version() -> None:
    assert bashd("--version").stdout == f"bashd {__version__}\n"


@pytest.mark.parametrize("words", [[], ["frobnicate"], ["ps", "--frob"], ["kill"]])
def test_words_that_make_no_sense_are_status_2(words: list[str]) -> None:
    done = bashd(*words)
    assert done.returncode == 2
    assert "usage: bashd" in done.stdout + done.stderr


def test_the_schema_is_json_and_complete() -> None:
    schema = json.loads(bashd("schema").stdout)
    assert "exec.run" in schema["methods"]
    assert "one JSON object a line" in schema["description"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_options(shell: str) -> None:
    done = bashd("completion", shell)
    assert done.returncode == 0
    for word in ("session", "workspace-write", "no-autostart"):
        assert word in done.stdout
    if shutil.which(shell):
        checked = subprocess.run(
            [shell, "-n"],
            input=done.stdout,
            text=True,
            capture_output=True,
            check=False,
        )
        assert checked.stderr == ""


def test_only_the_module_of_the_command_is_loaded() -> None:
    script = (
        "import sys; from bashd.cli.commands import build_parser; "
        "build_parser(['ps']); print('\\n'.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "bashd.cli.ps_cmd" in loaded
    assert not {"bashd.cli.logs_cmd", "bashd.cli.doctor_cmd", "msgspec"} & loaded


def test_every_client_command_takes_a_socket() -> None:
    parser = build_parser(list(COMMANDS))
    for words in (
        ["ps"],
        ["logs", "bash-1"],
        ["wait", "bash-1"],
        ["kill", "bash-1"],
        ["status"],
        ["session", "list"],
        ["session", "open"],
    ):
        assert parser.parse_args([*words, "--socket", "/s"]).socket == "/s"
