"""What developers run all day works behind the walls, in both confining modes."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.support.stations import (
    CONFINING,
    READ_ONLY,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    USER_BWRAP,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
    sys_python,
)

GIT = "git -c user.name=a -c user.email=a@b -c init.defaultBranch=main"


def test_i01_git_init_commit_branch_and_stash(station: Station):
    first = station.run(f"{GIT} init -q . && {GIT} commit -q --allow-empty -m first")
    assert first.exit_code == 0, first
    script = f"""
        set -e
        echo one > file; {GIT} add file; {GIT} commit -q -m second
        {GIT} branch other; {GIT} checkout -q other; {GIT} checkout -q main
        echo two > file; {GIT} stash -q; {GIT} stash pop -q; {GIT} commit -q -a -m third
        {GIT} merge -q other; {GIT} tag v1; {GIT} log --oneline | wc -l
        {GIT} status --porcelain
    """
    assert station.text(script) == "3\n"
    assert station.text("git log --oneline | wc -l", READ_ONLY) == "3\n"


def test_i42_git_opens_no_editor_and_asks_nobody(station: Station):
    result = station.run(
        f"{GIT} init -q . && {GIT} commit --allow-empty", timeout_ms=20_000
    )
    assert not result.timed_out
    assert result.exit_code == 1, "an empty message ends a commit"
    asked = station.run("echo x > /dev/tty", timeout_ms=20_000)
    assert asked.exit_code == 1
    assert "No such device or address" in asked.stderr.text


@pytest.mark.parametrize("mode", CONFINING)
def test_ssh_reads_its_configuration(station: Station, mode: str):
    result = station.run("ssh -G localhost > /dev/null && echo works", mode)
    assert result.stdout.text == "works\n", result


def test_a_virtual_environment_can_be_made_and_used(station: Station):
    result = station.run(
        f"{sys_python()} -m venv --without-pip v"
        " && v/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'"
    )
    assert result.stdout.text == "True\n", result


def test_i19_multiprocessing_has_its_semaphores(station: Station):
    program = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
if __name__ == "__main__":
    multiprocessing.Lock()
    with ProcessPoolExecutor(2) as pool:
        print(sum(pool.map(abs, range(-3, 0))))
"""
    # Under landlock shared memory is the host's, so only workspace-write may have it.
    for mode in CONFINING if station.under_bwrap else (WORKSPACE_WRITE,):
        result = station.run(
            f"cat > $TMPDIR/pool.py && {sys_python()} $TMPDIR/pool.py",
            mode,
            stdin=program.encode(),
        )
        assert result.stdout.text == "6\n", result


@pytest.mark.parametrize("mode", CONFINING)
def test_i16_here_documents_of_any_size(station: Station, mode: str):
    # Beyond the pipe's buffer bash puts them into a file.
    big = "x=$(head -c 100000 /dev/zero | tr '\\0' a); cat <<E | wc -c\n$x\nE"
    assert station.text(big, mode) == "100001\n"
    assert station.text("cat <<< here; cat <<'E'\n$literal\nE", mode) == (
        "here\n$literal\n"
    )


@pytest.mark.parametrize("mode", CONFINING)
def test_i14_temporary_files_have_a_place(station: Station, mode: str):
    made = station.text(
        "for v in $TMPDIR $TMP $TEMP; do test -d $v -a -w $v && echo $v; done;"
        " f=$(mktemp) && d=$(mktemp -d) && echo x > $d/f && test -f $f && echo made",
        mode,
    )
    *places, last = made.split()
    assert last == "made"
    assert len(places) == 3
    assert len(set(places)) == 1
    assert (places[0] == "/tmp") is station.under_bwrap


@pytest.mark.parametrize("mode", CONFINING)
def test_i20_standard_streams_can_be_opened_by_name(station: Station, mode: str):
    result = station.run(
        "echo 1; echo 2 > /dev/stdout; echo 3 | tee /dev/stderr > /dev/null;"
        f' cat <(echo 4); {sys_python()} -c \'open("/dev/stdout", "w").write("5\\n")\';'
        " echo 6 > /dev/fd/1; echo 7 >> /dev/stderr; echo 8 | cat /dev/stdin;"
        " diff <(echo a) <(echo b) > /dev/null || echo 9 > >(cat)",
        mode,
    )
    assert result.exit_code == 0, result
    assert result.stdout.text.split() == ["1", "2", "4", "5", "6", "8", "9"]
    assert result.stderr.text.split() == ["3", "7"]


def test_i69_what_needs_more_than_a_cell_gives_fails_at_once(station: Station):
    for command in ("sudo -n true", "unshare -Ur true", "bwrap --ro-bind / / true"):
        if shutil.which(command.split()[0]) is None:
            continue
        result = station.run(command, timeout_ms=20_000)
        assert not result.timed_out, command
        if not (command.startswith("sudo") and station.caller.is_root):
            assert result.exit_code not in (0, None), command


def test_a_command_can_trace_its_own_children(station: Station):
    # What strace and gdb begin with.
    program = """
import ctypes, os, signal
child = os.fork()
if child == 0:
    ctypes.CDLL(None).ptrace(0, 0, None, None)  # PTRACE_TRACEME
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(3)
assert os.WIFSTOPPED(os.waitpid(child, 0)[1])
ctypes.CDLL(None).ptrace(7, child, None, None)  # PTRACE_CONT
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    result = station.run(f"{sys_python()} -", stdin=program.encode())
    assert result.stdout.text == "3\n", result


def test_i03_a_git_folder_that_is_a_link_stops_nothing(station: Station):
    meta = station.give(station.folder / "workspace" / "meta")
    station.give(station.workspace / "tree")
    made = station.as_caller(
        *("git", "init", "-q", f"--separate-git-dir={meta}/x.git"),
        str(station.workspace / "tree"),
    )
    assert made.returncode == 0, made.stderr
    (station.workspace / "tree" / ".git").unlink()
    station.link(station.workspace / "tree" / ".git", "../meta/x.git")
    session = station.open(station.workspace / "tree", mode="workspace-write")
    assert session.run("pwd").stdout.text == f"{station.workspace}/tree\n"
    assert session.run("git status --porcelain").exit_code == 0


def test_i04_nothing_appears_in_the_workspace(station: Station):
    station.run("true")
    assert list(station.workspace.iterdir()) == []
    task = station.client.start("sleep 600.5", mode="workspace-write")
    try:
        while not station.processes("sleep 600.5"):
            assert station.client.get(task.task_id) is not None
        assert list(station.workspace.iterdir()) == []
    finally:
        station.client.kill(task.task_id)
    assert station.client.wait(task.task_id).status == "killed"
    assert list(station.workspace.iterdir()) == []


@on(USER_BWRAP, USER_LANDLOCK, SERVED_BWRAP, SERVED_LANDLOCK)
def test_i08_a_workspace_that_is_not_the_callers_serves_what_is_inside(
    station: Station,
):
    parent = station.folder / "shared"
    parent.mkdir(mode=0o755)
    os.chown(parent, 65534, 65534)
    inner = station.give(parent / "own")
    session = station.open(parent, mode="workspace-write")
    assert session.run("pwd").stdout.text == f"{parent}\n"
    assert session.run("echo x > own/file && cat own/file").stdout.text == "x\n"
    assert (inner / "file").exists()
    refused = session.run("echo x > file")
    assert refused.exit_code == 1
    assert refused.sandbox is not None
    if station.under_bwrap:
        assert not refused.sandbox.denied, "the folder's owner refuses, no wall does"


def test_i09_a_protected_name_that_is_a_link_to_a_folder(station: Station):
    station.give(station.workspace / "shared")
    station.give(station.workspace / "shared" / ".codex")
    station.make("workspace/shared/.codex/hooks.toml", "old\n")
    station.link(station.workspace / ".codex", "shared/.codex")
    assert station.text("pwd") == f"{station.workspace}\n"
    result = station.run("echo x > shared/.codex/hooks.toml")
    if station.under_bwrap:
        assert result.exit_code == 1
        assert (station.workspace / ".codex" / "hooks.toml").read_text() == "old\n"
