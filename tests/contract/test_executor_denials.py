"""L. Denial and runner-failure classification, over a real daemon and as a rule.

A daemon that reads the kernel's records knows more than stderr says; these cases are
about a command whose words are all there is, or which was refused nothing at all.
"""

from __future__ import annotations

import os
import signal

import pytest

from bashd.core.denial import classify
from bashd.core.model import Mode, RunResult, SandboxFacts, Verdict
from bashd.tools.render import ESCALATION_HINT, render_read
from tests.support.launchers import is_launcher, parent_of
from tests.support.stations import (
    ALL,
    CONFINING,
    READ_ONLY,
    SERVED_LANDLOCK,
    USER_BWRAP,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
)

TWO = (USER_BWRAP, SERVED_LANDLOCK)
DIALECT = {"bwrap": "Read-only file system", "landlock": "Permission denied"}
MARKER = "[sandbox: file access denied under read-only mode]"


def verdict(*, exit_code: int | None, stderr: str, runner: str) -> Verdict:
    return classify(exit_code=exit_code, stderr=stderr, runner=runner)[0]


@pytest.mark.parametrize("runner", DIALECT)
def test_c199_to_c204_the_rule(runner: str):
    words = f"bash: line 1: /etc/x: {DIALECT[runner]}\n"
    assert verdict(exit_code=1, stderr=words, runner=runner) is Verdict.SUSPECTED
    loud = verdict(exit_code=1, stderr=words.upper(), runner=runner)
    assert loud is Verdict.SUSPECTED, "c203"
    assert verdict(exit_code=0, stderr=words, runner=runner) is Verdict.NONE, "c199"
    killed = verdict(exit_code=None, stderr=words, runner=runner)
    assert killed is Verdict.NONE, "c200"
    bare = "mount: Operation not permitted\n"
    assert verdict(exit_code=1, stderr=bare, runner=runner) is Verdict.NONE, "c201"
    assert verdict(exit_code=1, stderr="", runner=runner) is Verdict.NONE, "c204"


def facts(result: RunResult) -> SandboxFacts:
    assert result.sandbox is not None
    return result.sandbox


@on(*ALL)
def test_c199_to_c204_real_commands(station: Station):
    words = DIALECT[station.runner]
    refused = station.outside / "x"
    denied = station.run(f"echo x > {refused}")
    assert denied.exit_code == 1
    assert facts(denied).denied
    assert facts(denied).verdict in (Verdict.SUSPECTED, Verdict.DENIED)
    # Refused the same, and then: it went well, it died, it said so elsewhere.
    said = f"echo '{words}' >&2"
    assert not facts(station.run(f"{said}; exit 0")).denied
    assert not facts(station.run(f"{said}; kill -KILL $$")).denied
    assert not facts(station.run(f"echo '{words}'; exit 1")).denied
    assert not facts(
        station.run("echo 'mount: Operation not permitted' >&2; exit 1")
    ).denied


@on(*ALL)
@pytest.mark.parametrize("mode", CONFINING)
def test_i53_not_every_failure_is_the_sandboxs(station: Station, mode: str):
    other = station.folder / "other"
    other.mkdir(mode=0o700)
    for command in (
        "false",
        "grep nope /etc/hostname",
        "nosuchcmd",
        "bash -c 'exit 126'",
        "ls /nowhere",
        "cat < /nowhere",
        "cd /nowhere",
        "git --nonsense 2>/dev/null",
    ):
        result = station.run(command, mode)
        assert result.exit_code != 0
        assert (facts(result).denied, facts(result).denials) == (False, ()), command
    if station.under_bwrap:
        # The walls there answer otherwise, so these words are somebody else's.
        for command in (
            'echo "app: Permission denied (publickey)" >&2; exit 255',
            f"ls {other}" if not station.caller.is_root else "exit 2",
        ):
            result = station.run(command, mode)
            assert not facts(result).denied, command


@on(*ALL)
def test_i56_harmless_commands_are_never_denied(station: Station):
    for command in ("true", "ls", "python3 -c 1", "git --version", "test -r /dev/tty"):
        result = station.run(f"{command} || true", READ_ONLY)
        assert facts(result).verdict in (Verdict.NONE, Verdict.UNKNOWN), command
        assert not facts(result).denied


@on(USER_BWRAP, USER_LANDLOCK, SERVED_LANDLOCK)
def test_i55_c225_a_command_cannot_speak_for_the_runner(station: Station):
    for command, status in (
        ("echo 'bwrap: setting up uid map: Permission denied?' >&2; exit 1", 1),
        ("echo 'landlock-run: fatal' >&2; exit 125", 125),
        ("echo 'bwrap: execvp bash: No such file or directory' >&2; exit 1", 1),
        ("printf 'step mounts failed' >&2; exit 127", 127),
        ("exit 126", 126),
    ):
        result = station.run(command, READ_ONLY)
        assert (result.exit_code, result.signal) == (status, None)
        assert not facts(result).runner_failed
    # Whatever it sends to the descriptors it might have inherited.
    forged = "for fd in 3 4 5 6 7 8 9 10 500 501; do printf f >&$fd; done 2>/dev/null"
    assert station.run(f"{forged}; exit 3").exit_code == 3


def keeper_of(station: Station, mark: str) -> int:
    """Return the first process of the cell in which a command with *mark* runs."""
    pid = station.processes(mark)[0]
    while not is_launcher(pid):
        pid = parent_of(pid)
    return pid


@on(*ALL)
def test_c207_a_task_whose_cell_breaks_is_no_failure_of_the_commands(station: Station):
    task = station.client.start(
        f"echo '{DIALECT[station.runner]}' >&2; sleep 600.207; exit 1", mode=READ_ONLY
    )
    while not station.processes("sleep 600.207"):
        assert station.client.get(task.task_id) is not None
    os.kill(keeper_of(station, "sleep 600.207"), signal.SIGKILL)
    settled = station.client.wait(task.task_id)
    assert settled.sandbox is not None
    assert settled.sandbox.runner_failed
    assert not settled.sandbox.denied
    assert settled.status == "killed"
    for _ in range(2):
        read = station.client.read_output(task.task_id)
        assert read is not None
        text = render_read(read, escalation=True)
        assert (
            "[sandbox: the sandbox runner itself failed under read-only mode \N{EM DASH}"
            " the command did not run; this is a sandbox problem, not a command failure]"
        ) in text
        assert "file access denied" not in text
        assert ESCALATION_HINT not in text
    assert station.text("echo next", READ_ONLY) == "next\n"
    assert not station.processes("sleep 600.207")


@on(*TWO)
def test_c216_a_denied_task_says_so_on_every_read(station: Station):
    task = station.client.start(f"echo x > {station.outside}/x", mode=READ_ONLY)
    settled = station.client.wait(task.task_id)
    assert settled.exit_code == 1
    assert settled.sandbox is not None
    assert settled.sandbox.denied
    assert settled.sandbox.mode is Mode.READ_ONLY
    for number in range(2):
        read = station.client.read_output(task.task_id)
        assert read is not None
        lines = render_read(read, escalation=True).splitlines()
        assert (number == 1) is (lines[0] == "(no new output)")
        status = lines.index("[status: completed, exit code: 1]")
        assert lines[status + 1] == MARKER
        assert ESCALATION_HINT in lines[status + 2 :]


@on(*TWO)
def test_c217_a_killed_task_is_not_denied(station: Station):
    words = DIALECT[station.runner]
    task = station.client.start(f"echo '{words}' >&2; kill -TERM $$", mode=READ_ONLY)
    settled = station.client.wait(task.task_id)
    assert (settled.status, settled.signal) == ("killed", "SIGTERM")
    assert settled.sandbox is not None
    assert not settled.sandbox.denied


@on(*TWO)
def test_i18_a_denial_names_path_and_mode(station: Station):
    target = station.outside / "x"
    for mode in CONFINING:
        result = station.run(f"echo x > {target}", mode)
        found = facts(result)
        assert (str(found.mode), found.denied) == (mode, True)
        assert str(target) in [denial.path for denial in found.denials]
    assert str(station.workspace) in station.open(mode=WORKSPACE_WRITE).session.writable


@on(*ALL)
def test_i18_the_command_line_says_where_one_may_write(station: Station):
    scratch = station.text("echo $TMPDIR", READ_ONLY).strip()
    for mode, places in (
        (READ_ONLY, [scratch]),
        (WORKSPACE_WRITE, [str(station.workspace), scratch]),
    ):
        options = ("--session", station.client.session.session_id, "--mode", mode)
        done = station.daemon.cli("run", *options, "--", "echo x > /etc/zz")
        marker, detail, status = done.stderr.splitlines()[-3:]
        assert marker == f"[sandbox: file access denied under {mode} mode]"
        assert detail.startswith("[sandbox: denied ")
        assert "/etc/zz" in detail
        told = detail.removesuffix("]").partition("; writable here: ")[2].split(", ")
        assert set(places) <= set(told), detail
        assert status == "[exit code: 1]"
