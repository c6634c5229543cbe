"""The custom executor, called as GitLab's runner calls it."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from bashd.cli.gitlab_job import GitlabJob
from bashd.core.errors import InvalidParamsError
from tests.conftest import daemon_factory
from tests.support.stage import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.accounts import Account
    from tests.support.daemons import RunningDaemon
    from tests.support.stage import Install

pytestmark = pytest.mark.slow

BUILD_FAILURE, SYSTEM_FAILURE = 41, 42
"""The runner chooses them; not the values a program would pick by itself."""


@pytest.fixture(scope="module")
def daemon(
    reachable_tmp: Path,
    install: Install,
    ordinary_user: Account,
    bwrap_for_users: None,
) -> Iterator[RunningDaemon]:
    with daemon_factory(reachable_tmp, install) as make:
        yield make(account=ordinary_user)


@dataclass(slots=True)
class Runner:
    """GitLab's runner, for one job."""

    daemon: RunningDaemon
    folder: Path
    job_id: str
    environment: dict[str, str]

    def argv(self, verb: str, *words: str) -> list[str]:
        options = ("--folder", str(self.folder / "jobs"))
        return self.daemon.caller_argv("ci", "gitlab", verb, *words, *options)

    def env(self) -> dict[str, str]:
        given = {
            "BUILD_FAILURE_EXIT_CODE": str(BUILD_FAILURE),
            "SYSTEM_FAILURE_EXIT_CODE": str(SYSTEM_FAILURE),
            "BUILD_EXIT_CODE_FILE": str(self.exit_code_file),
            "RUNNER_TOKEN": "canary-of-the-runner",
            "CUSTOM_ENV_CI_JOB_ID": self.job_id,
            "CUSTOM_ENV_CI_RUNNER_ID": "7",
            "CUSTOM_ENV_CI_SERVER_HOST": "gitlab.example",
            "CUSTOM_ENV_DEPLOY_TOKEN": "the job's own",
        }
        return self.daemon.caller_env(given | self.environment)

    @property
    def exit_code_file(self) -> Path:
        return self.folder / f"exit-{self.job_id}"

    def start(self, verb: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(verb, *words),
            env=self.env(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, verb: str, *words: str) -> tuple[int, str, str]:
        with self.start(verb, *words) as process:
            out, err = process.communicate(timeout=55)
        return process.returncode, out, err

    def script(self, text: str) -> str:
        path = self.folder / f"script-{secrets.token_hex(4)}"
        path.write_text(f"#!/usr/bin/env bash\n\nset -eo pipefail\n{text}\nexit 0\n")
        path.chmod(0o644)
        return str(path)

    def run(self, text: str, stage: str = "build_script") -> tuple[int, str, str]:
        return self.call("run", self.script(text), stage)

    def config(self) -> dict[str, Any]:
        status, out, _ = self.call("config")
        assert status == 0
        return json.loads(out)


@pytest.fixture
def make_runner(daemon: RunningDaemon, reachable_tmp: Path) -> Any:
    folder = reachable_tmp / f"gitlab-{secrets.token_hex(4)}"
    folder.mkdir()
    os.chown(folder, daemon.caller.uid, daemon.caller.gid)

    def make(job_id: str = "100", **environment: str) -> Runner:
        return Runner(daemon, folder, job_id, environment)

    return make


@pytest.fixture
def short_policy(daemon: RunningDaemon) -> Iterator[str]:
    """Name of a policy of the runner's account that gives a job eight seconds."""
    name = f"short-{secrets.token_hex(4)}"
    text = (REPOSITORY / "policies" / "ci.toml").read_text()
    text = shlex.quote(text.replace("job_s = 21600", "job_s = 8"))
    path = f"~/.config/bashd/policies/{name}.toml"
    line = f"mkdir -p ~/.config/bashd/policies && printf %s {text} > {path}"
    home = ("--mode", "danger-full-access", "--cwd", str(daemon.caller.home))
    assert daemon.cli("run", *home, "--", line).returncode == 0
    yield name
    daemon.cli("run", *home, "--", f"rm {path}; cd && rmdir -p .config/bashd/policies")


def nothing_left(runner: Runner) -> bool:
    listed = runner.daemon.cli("session", "list", "--json")
    sessions = json.loads(listed.stdout)["sessions"]
    jobs = runner.folder / "jobs"
    return not any(s["cwd"].startswith(str(runner.folder)) for s in sessions) and not (
        jobs.exists() and any(jobs.iterdir())
    )


def test_a_passing_job(make_runner: Any) -> None:
    runner = make_runner()
    config = runner.config()
    assert config["driver"]["name"] == "bashd"
    assert config["builds_dir_is_shared"] is False
    assert runner.call("prepare")[0] == 0
    project = f"{config['builds_dir']}/group/project"
    sources = f"mkdir -p {project}; cd {project}; echo content > file"
    assert runner.run(sources, "get_sources") == (0, "", "")
    status, out, err = runner.run(f"cd {project}; cat file; echo $DEPLOY_TOKEN; pwd")
    assert (status, out) == (0, f"content\nthe job's own\n{project}\n"), err
    status, out, _ = runner.run("echo ${RUNNER_TOKEN-none} $CI_JOB_ID", "after_script")
    assert (status, out) == (0, "none 100\n")
    assert runner.call("cleanup")[0] == 0
    assert nothing_left(runner)


def test_a_failing_job_ends_with_the_runners_code_and_tells_its_own(
    make_runner: Any,
) -> None:
    runner = make_runner()
    assert runner.call("prepare")[0] == 0
    status, out, _ = runner.run("echo before; (exit 17); echo after")
    assert (status, out) == (BUILD_FAILURE, "before\n")
    assert runner.exit_code_file.read_text() == "17\n"
    assert runner.run("kill -9 $$")[0] == BUILD_FAILURE
    assert runner.exit_code_file.read_text() == f"{128 + 9}\n"
    assert runner.call("cleanup")[0] == 0
    assert nothing_left(runner)


def test_a_job_is_stopped_at_its_walls(make_runner: Any) -> None:
    runner = make_runner()
    runner.call("prepare")
    outside = runner.folder / "outside"
    status, _, err = runner.run(f"echo x > {outside}")
    assert status == BUILD_FAILURE
    assert "[sandbox: file access denied under workspace-write mode]" in err
    assert not outside.exists()
    session = next((runner.folder / "jobs").glob("*/session"))
    assert runner.run(f"echo x > {session}")[0] == BUILD_FAILURE
    runner.call("cleanup")


def test_a_job_that_takes_too_long_fails(make_runner: Any) -> None:
    runner = make_runner(CUSTOM_ENV_CI_JOB_TIMEOUT="1")
    runner.call("prepare")
    status, out, err = runner.run("echo started; sleep 600")
    assert (status, out) == (BUILD_FAILURE, "started\n")
    assert "[timed out after 1 s]" in err
    runner.call("cleanup")
    assert nothing_left(runner)


def test_a_job_whose_whole_time_is_over_fails(
    make_runner: Any, short_policy: str
) -> None:
    runner = make_runner(BASHD_POLICY=short_policy)
    assert runner.call("prepare")[0] == 0
    assert runner.run("echo sources", "get_sources")[:2] == (0, "sources\n")
    status, out, err = runner.run("echo started; sleep 600")
    assert (status, out) == (BUILD_FAILURE, "started\n")
    assert "the job's time was over: limits.job_s" in err
    assert runner.exit_code_file.read_text() == "124\n"
    runner.exit_code_file.unlink()
    status, out, err = runner.run("echo late", "after_script")
    assert (status, out) == (BUILD_FAILURE, "")
    assert "the job's time is over" in err
    assert runner.exit_code_file.read_text() == "124\n"
    assert runner.call("cleanup")[0] == 0
    assert nothing_left(runner)


def test_a_cancelled_job_may_clean_up_and_leaves_nothing(make_runner: Any) -> None:
    runner = make_runner()
    runner.call("prepare")
    line = "trap 'echo cleaned; exit 1' TERM; echo up; while :; do sleep 0.05; done"
    with runner.start("run", runner.script(line), "build_script") as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert out == "cleaned\n"
    assert process.returncode == BUILD_FAILURE
    assert runner.call("cleanup")[0] == 0
    assert nothing_left(runner)


def test_a_job_whose_executor_is_killed_leaves_nothing(make_runner: Any) -> None:
    runner = make_runner()
    runner.call("prepare")
    length = str(70000 + os.getpid() % 9999)
    line = f"setsid sleep {length} & echo up; trap '' TERM; sleep {length}"
    with runner.start("run", runner.script(line), "build_script") as process:
        assert process.stdout.readline() == "up\n"
        process.kill()
    assert runner.call("cleanup")[0] == 0
    assert nothing_left(runner)
    while (
        subprocess.run(
            ["pgrep", "-f", f"^sleep {length}"], check=False, stdout=-3
        ).returncode
        == 0
    ):
        time.sleep(0.01)


def test_a_broken_backend_is_the_systems_failure(make_runner: Any) -> None:
    runner = make_runner(BASHD_SOCKET="/nonexistent.sock")
    status, _, err = runner.call("prepare")
    assert status == SYSTEM_FAILURE
    assert "no daemon answers" in err
    # Cleanup always runs, and does what it can.
    assert runner.call("cleanup")[0] == 0
    assert nothing_left(make_runner())
    assert make_runner().run("true")[0] == SYSTEM_FAILURE
    assert make_runner(CUSTOM_ENV_CI_JOB_ID="../x").call("config")[0] == SYSTEM_FAILURE
    assert make_runner().call("run", "/no/such/script", "x")[0] == SYSTEM_FAILURE


def test_what_a_job_leaves_cannot_resist_removal(make_runner: Any) -> None:
    runner = make_runner()
    builds = runner.config()["builds_dir"]
    runner.call("prepare")
    deep = "for n in $(seq 500); do mkdir d; cd d; done; touch f; chmod 0 ."
    status, _, err = runner.run(f"cd {builds}; mkdir -m 0 closed; ln -s / root; {deep}")
    assert status == 0, err
    assert runner.call("cleanup")[0] == 0
    assert nothing_left(runner)


def test_a_second_cleanup_and_a_second_prepare_do_no_harm(make_runner: Any) -> None:
    runner = make_runner()
    assert runner.call("cleanup")[0] == 0
    assert runner.call("prepare")[0] == 0
    assert runner.run("echo old > ~/old; echo old > /tmp/old")[0] == 0
    assert runner.call("prepare")[0] == 0
    assert runner.run("cat ~/old /tmp/old 2>/dev/null || echo new")[1] == "new\n"
    for _ in range(2):
        assert runner.call("cleanup")[0] == 0
    assert nothing_left(runner)


def test_twenty_jobs_at_once_share_nothing(make_runner: Any) -> None:
    runners = [make_runner(str(number)) for number in range(20)]
    together = threading.Barrier(len(runners))

    def whole_job(runner: Runner) -> list[str]:
        mine = runner.job_id
        assert runner.call("prepare")[0] == 0
        # Every job is under way before any is looked at, and until all have been.
        together.wait(50)
        status, _, err = runner.run(
            f"for place in ~ /tmp {runner.config()['builds_dir']}; do"
            f" test ! -e $place/mark; echo {mine} > $place/mark; done"
        )
        assert status == 0, err
        seen = runner.run("cat ~/mark /tmp/mark; ls -A ~ | wc -l")[1].split()
        together.wait(50)
        assert runner.call("cleanup")[0] == 0
        return seen[:2]

    with ThreadPoolExecutor(len(runners)) as pool:
        results = list(pool.map(whole_job, runners))
    assert results == [[runner.job_id] * 2 for runner in runners]
    assert nothing_left(runners[0])


@pytest.mark.parametrize("name", ["", "../..", "a/b", "x y", "1\n"])
def test_a_job_id_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidParamsError):
        GitlabJob({"CUSTOM_ENV_CI_JOB_ID": name}, "/base")
