"""SIGHUP replaces the daemon's program in place; tasks go on as if nothing were."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bashd.daemon.handover import without_ready_fd
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.daemons import RunningDaemon

COUNT = "for i in $(seq 1 {n}); do echo line-$i; sleep 0.01; done; exit 7"


until = partial(eventually, within_s=20)


def start(daemon: RunningDaemon, workspace: Path, command: str) -> str:
    done = daemon.cli("run", "--background", "--cwd", str(workspace), "--", command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def uptime_s(daemon: RunningDaemon) -> float:
    return float(json.loads(daemon.cli("status", "--json").stdout)["uptime_s"])


def reload(daemon: RunningDaemon) -> None:
    """Send SIGHUP and wait for the new program."""
    began = time.monotonic()
    time.sleep(0.01)
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: uptime_s(daemon) < time.monotonic() - began, "the new program")


def test_task_goes_on_over_a_reload_without_a_byte_missing(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    pid = daemon.pid
    task_id = start(daemon, workspace, COUNT.format(n=200))
    for _ in range(2):
        reload(daemon)
    waited = daemon.cli("wait", task_id)
    assert waited.returncode == 7, waited.stderr
    expected = "".join(f"line-{n}\n" for n in range(1, 201))
    assert daemon.cli("logs", task_id).stdout == expected
    assert daemon.process.poll() is None
    assert daemon.pid == pid
    assert daemon.run("echo next", cwd=workspace)["exit_code"] == 0


def test_clients_that_connect_during_a_reload_are_served(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    daemon.run("true", cwd=workspace)
    daemon.process.send_signal(signal.SIGHUP)
    statuses: list[int] = []
    for _ in range(12):
        done = daemon.cli("run", "--cwd", str(workspace), "--", "true")
        statuses.append(done.returncode)
    # One may be under way as the program goes: it is told so, and it is the only one.
    assert statuses.count(0) >= 11, statuses


def test_foreground_run_ends_with_the_program_and_says_so(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    client = subprocess.Popen(
        daemon.caller_argv("run", "--cwd", str(workspace), "--", "echo on; sleep 600"),
        env=daemon.caller_env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with client:
        assert client.stdout is not None
        assert client.stdout.readline() == "on\n"
        reload(daemon)
        _, said = client.communicate(timeout=20)
    assert client.returncode != 0, said
    until(
        lambda: not [p for p in daemon.enclosure.pids() if _argv0(p) == "sleep"],
        "the end of its command",
    )


def test_bad_configuration_keeps_the_old_program(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    daemon.run("true", cwd=workspace)
    config = daemon.folder / "bashd.toml"
    good = config.read_text()
    config.write_text("[daemon]\nspares = 'many'\n")
    before = uptime_s(daemon)
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "nothing was reloaded" in daemon.log, "a word in the log")
    config.write_text(good)
    assert daemon.run("echo fine", cwd=workspace)["exit_code"] == 0
    assert uptime_s(daemon) > before


def test_new_configuration_counts(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    assert daemon.run("true", cwd=workspace)["timeout_ms"] == 120_000
    config = daemon.folder / "bashd.toml"
    text = config.read_text()
    assert "[executor]" not in text
    config.write_text(text + "\n[executor]\ntimeout_ms = 4321\n")
    reload(daemon)
    assert daemon.run("true", cwd=workspace)["timeout_ms"] == 4321


def test_many_reloads_leave_no_zombie_and_no_descriptor(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    start(daemon, workspace, "sleep 600")
    counts: list[int] = []
    for _ in range(4):
        daemon.run("true", cwd=workspace)
        reload(daemon)
        until(lambda: not zombies_of(daemon.pid), "reaped children")
        # The adopted task's own come with its keeper, a moment after the program.
        until(lambda: rss_of_only_task(daemon), "the task's return")
        counts.append(len(list(Path(f"/proc/{daemon.pid}/fd").iterdir())))
    assert counts[-1] <= counts[0] + 2, counts


def test_stop_after_a_reload_is_as_clean(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    start(daemon, workspace, "sleep 600")
    reload(daemon)
    # The fixture stops it and looks for what is left.


def test_session_keeps_its_mode_and_its_task_numbers(every_daemon: RunningDaemon):
    daemon = every_daemon
    workspace = daemon.make_workspace()
    opened = daemon.cli(
        *("session", "open", "--cwd", str(workspace), "--mode", "workspace-write")
    )
    session_id = opened.stdout.strip()
    assert start(daemon, workspace, "true") == "bash-1"
    reload(daemon)
    done = daemon.cli("run", "--session", session_id, "--", "touch made")
    assert done.returncode == 0, done.stderr
    assert (workspace / "made").exists()
    assert start(daemon, workspace, "true") == "bash-2"


def rss_of_only_task(daemon: RunningDaemon) -> int:
    (task,) = json.loads(daemon.cli("ps", "--json").stdout)["tasks"]
    return int(task["rss_bytes"])


def zombies_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if _state(int(child)) == "Z"]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _argv0(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return ""


@pytest.mark.parametrize("words", [["--ready-fd", "7"], ["--ready-fd=7"]])
def test_successor_is_not_told_of_a_descriptor_that_is_closed(words: list[str]):
    argv = ["python", "-m", "bashd.daemon", *words, "--socket", "/x"]
    assert without_ready_fd(argv) == ["python", "-m", "bashd.daemon", "--socket", "/x"]
