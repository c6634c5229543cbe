"""bashd-sh takes what bash takes, and does what bash does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.shell.conftest import Bench

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "words",
    [
        ("-c", "echo out; echo err >&2; exit 7"),
        ("-c", 'echo "$0" "$#" "$@"'),
        ("-c", 'echo "$0" "$#" "$@"', "zero", "a b", "", "c*"),
        ("-e", "-c", "false; echo not here"),
        ("-ec", "false; echo not here"),
        ("-u", "-c", "echo $nothing"),
        ("-x", "-c", "echo traced"),
        ("-o", "pipefail", "-c", "false | true"),
        ("-eo", "pipefail", "-c", "false | true; echo not here"),
        ("-euxo", "pipefail", "-c", "echo $-", "name"),
        ("--noprofile", "--norc", "-c", "echo $-"),
        ("-O", "extglob", "-c", "shopt -q extglob && echo on"),
        ("+e", "-c", "false; echo here"),
        ("-c", ""),
        ("-c", "syntax error ("),
        ("-c", "no-such-program"),
        ("-c",),
        ("-c", "--", "echo dashes"),
        ("no-such-script",),
        ("-o", "no-such-option", "-c", "true"),
        ("-c", "printf 'a\\0b\\377' | od -c"),
        ("-c", "exit 124"),
        ("-c", "exit 255"),
        ("-c", "kill -TERM $$"),
        ("-c", "kill -KILL $$"),
        ("-c", "kill -USR1 $$"),
        ("-c", "cat; echo end"),
    ],
    ids=" ".join,
)
def test_the_words_of_bash(bench: Bench, words: tuple[str, ...]) -> None:
    bench.both(*words)


def test_a_script_file_with_arguments(bench: Bench) -> None:
    text = 'echo "$0 $1" "${BASH_SOURCE[0]}" $LINENO\ncat\nfalse\necho not here\n'
    script = bench.write("dir with space/script.sh", text)
    done = bench.both("-e", str(script), "one", stdin="input\n")
    assert done.stdout == f"{script} one {script} 1\ninput\n"
    assert done.status == 1
    assert bench.both("dir with space/script.sh").status == 0


def test_a_script_that_the_cell_does_not_see(bench: Bench) -> None:
    # As Jenkins writes them, below the host's /tmp.
    script = bench.write("script.sh", 'echo "$0 ${BASH_SOURCE[0]} $1"\nexit 3\n')
    away = f"/tmp/{bench.folder.name}.sh"
    bench.run(["/bin/cp", str(script), away])
    try:
        done = bench.both("-xe", away, "one")
        assert done.stdout == f"{away} {away} one\n"
        assert done.status == 3
    finally:
        Path(away).unlink()


def test_a_script_in_the_home_that_a_job_lacks(bench: Bench) -> None:
    # As Jenkins's pipelines and the runners of GitHub keep theirs: beside the workspace.
    script = bench.write("script.sh", "")
    away = bench.workspace.with_name(f"{bench.workspace.name}@tmp")
    bench.daemon.workspaces.append(away)
    path = away / "it's a script.sh"
    texts = ("", 'echo "$0 ${BASH_SOURCE[0]} $1"\nexit 3\n', "echo another\n\n", "")
    for text in texts:
        script.write_text(text)
        bench.run(["/bin/mkdir", "-p", str(away)])
        bench.run(["/bin/cp", str(script), str(path)])
        bench.both("-xe", str(path), "one")
        bench.both("--norc", "-eu", "--", str(path), "one")


def test_a_script_that_a_descriptor_leads_to(bench: Bench) -> None:
    for shell in bench.shells:
        line = f"{shell} -e <(echo 'echo text $1; exit 3') one"
        done = bench.run(["/bin/bash", "-c", line])
        assert (done.stdout, done.stderr, done.status) == ("text one\n", "", 3)


def test_a_script_on_stdin(bench: Bench) -> None:
    script = "read line\nthe data\necho got $line $1\nexit 4\n"
    assert bench.both(stdin=script).stdout == "got the data\n"
    assert bench.both("-s", "arg", stdin=script).stdout == "got the data arg\n"
    assert bench.both("-", stdin="echo dash").stdout == "dash\n"


def test_a_script_by_its_first_line(bench: Bench) -> None:
    outputs = []
    for shell in ("/bin/bash", bench.shells[1]):
        script = bench.write("run", f"#!{shell}\necho $1 $0\nexit 5\n")
        script.chmod(0o755)
        outputs.append(bench.run([str(script), "arg"]))
    assert outputs[0] == outputs[1]
    assert outputs[1].status == 5


def test_the_environment_is_the_callers(bench: Bench) -> None:
    keep = {"TERM": "xterm-256color", "MY_VAR": "a b", "PAGER": "less"}
    line = 'echo "$TERM|$MY_VAR|$PAGER|${NO_COLOR-unset}|$HOME|$PWD"'
    bench.both("-c", line, env=bench.env(**keep))


def test_secrets_stay_outside_unless_they_are_named(bench: Bench) -> None:
    env = bench.env(DEPLOY_TOKEN="canary", BASHD_PASS="")
    ours = bench.shells[1]
    line = "echo ${DEPLOY_TOKEN-gone}"
    assert bench.run([ours, "-c", line], env=env).stdout == "gone\n"
    named = env | {"BASHD_PASS": "DEPLOY_TOKEN"}
    assert bench.run([ours, "-c", line], env=named).stdout == "canary\n"


def test_stdout_and_stderr_in_one_file_keep_their_order(bench: Bench) -> None:
    line = "for n in 1 2 3 4 5 6 7 8; do echo out $n; echo err $n >&2; done"
    done = bench.both("-c", line, stderr=subprocess.STDOUT)
    assert done.stdout.splitlines()[:3] == ["out 1", "err 1", "out 2"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_command_and_is_seen_by_the_caller(
    bench: Bench, number: signal.Signals
) -> None:
    line = (
        "trap 'echo cleaned up; exit 0' TERM; echo here; while :; do sleep 0.05; done"
    )
    with bench.popen([bench.shells[1], "-c", line]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert out == "cleaned up\n"
    assert process.returncode == -number


def test_it_may_not_write_outside_its_job(bench: Bench) -> None:
    outside = bench.outside
    line = f"echo x > {outside}"
    bash, ours = bench.shells
    assert bench.run([bash, "-c", line]).status == 0
    outside.unlink()
    done = bench.run([ours, "-c", line])
    assert done.status == 1
    assert "[sandbox: file access denied under workspace-write mode]" in done.stderr
    assert not outside.exists()


def test_the_workspace_may_be_named(bench: Bench) -> None:
    ours = bench.shells[1]
    inner = bench.write("inner/file", "").parent
    line = "echo x > ../beside"
    # What is written is the private home's, and gone with it.
    bench.run([ours, "-c", line], cwd=inner)
    assert not (bench.workspace / "beside").exists()
    for name in ("BASHD_WORKSPACE", "GITHUB_WORKSPACE", "CI_PROJECT_DIR"):
        env = bench.env(**{name: str(bench.workspace)})
        assert bench.run([ours, "-c", line], cwd=inner, env=env).status == 0, name
        (bench.workspace / "beside").unlink()
    # A runner's folder that we are not in says nothing.
    elsewhere = bench.env(GITHUB_WORKSPACE="/srv")
    bench.run([ours, "-c", line], cwd=inner, env=elsewhere)
    assert not (bench.workspace / "beside").exists()


def test_jobs_in_one_folder_share_nothing(bench: Bench) -> None:
    ours = bench.shells[1]

    def tmp(job: str, line: str) -> str:
        env = bench.env(CI_JOB_ID=job)
        return bench.run([ours, "-c", line], env=env).stdout

    tmp("1", "echo mine > /tmp/x")
    assert tmp("1", "cat /tmp/x") == "mine\n"
    assert tmp("2", "ls /tmp/x 2>/dev/null") == ""


def test_a_nested_call_gets_no_other_policy(bench: Bench) -> None:
    ours = bench.shells[1]
    outside = bench.outside
    line = (
        f"BASHD_POLICY=danger-full-access BASHD_SESSION_ID= {ours} -c 'echo > {outside}';"
        f" {ours} -c 'echo > {outside}'; {ours} -c 'echo nested $0'"
    )
    done = bench.run([ours, "-c", line])
    assert done.stdout == "nested bash\n"
    assert not outside.exists()


def test_bashds_own_failure_is_125(bench: Bench) -> None:
    env = bench.env(BASHD_SOCKET="/nonexistent.sock")
    done = bench.run([bench.shells[1], "-c", "true"], env=env)
    assert done.status == 125
    assert done.stderr.startswith("bashd-sh: no daemon answers on /nonexistent.sock")


def test_no_daemon_is_needed_beforehand(bench: Bench) -> None:
    home = bench.write("home/x", "").parent
    env = bench.env(HOME=str(home), XDG_RUNTIME_DIR="")
    del env["BASHD_SOCKET"]
    done = bench.run([bench.shells[1], "-c", "echo $$ > /dev/null; echo up"], env=env)
    socket = home / ".bashd/run/bashd.sock"
    try:
        assert done.stdout == "up\n", done.stderr
    finally:
        status = bench.run(
            [bench.daemon.install.python, "-P", "-m", "bashd", "status", "--json"],
            env=env | {"BASHD_SOCKET": str(socket)},
        )
        pid = json.loads(status.stdout)["pid"]
        os.kill(pid, signal.SIGTERM)
        while socket.exists():
            time.sleep(0.01)
