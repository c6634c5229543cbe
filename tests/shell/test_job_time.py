"""The time of a whole job: what runs then is ended, and nothing begins after it."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.stage import REPOSITORY

if TYPE_CHECKING:
    from tests.conftest import DaemonFactory
    from tests.shell.conftest import Bench, Ran
    from tests.support.accounts import Account

pytestmark = pytest.mark.slow

JOB_S = 6
FOREVER = "600"


@dataclass(slots=True)
class Jobs:
    """Runs bashd-sh under a policy `ci` that gives a job six seconds."""

    bench: Bench
    config: Path

    def env(self, **more: str) -> dict[str, str]:
        return self.bench.env(XDG_CONFIG_HOME=str(self.config), **more)

    def run(self, line: str, **more: str) -> Ran:
        argv = [self.bench.shells[1], "-c", line]
        return self.bench.run(argv, env=self.env(**more))


@pytest.fixture
def jobs(bench: Bench) -> Jobs:
    config = bench.folder / "config"
    folder = config / "bashd" / "policies"
    folder.mkdir(parents=True)
    shipped = (REPOSITORY / "policies" / "ci.toml").read_text()
    (folder / "ci.toml").write_text(
        shipped.replace("job_s = 21600", f"job_s = {JOB_S}")
    )
    return Jobs(bench, config)


def is_running(length: str) -> bool:
    """Whether some process is ``sleep LENGTH``."""
    wanted = f"sleep\0{length}\0".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if (entry / "cmdline").read_bytes() == wanted:
                    return True
            except OSError:
                continue
    return False


def wait_until_gone(length: str) -> None:
    while is_running(length):
        time.sleep(0.02)


def unused_length() -> str:
    return str(secrets.randbelow(10**6) + 10**6)


def test_a_job_is_ended_and_its_later_steps_never_begin(jobs: Jobs) -> None:
    name = secrets.token_hex(4)
    began = time.monotonic()
    assert jobs.run("echo first", BASHD_JOB=name).stdout == "first\n"
    done = jobs.run(f"echo second; sleep {FOREVER}", BASHD_JOB=name)
    assert time.monotonic() - began >= JOB_S
    assert (done.status, done.stdout) == (124, "second\n")
    told = f"the job's time was over: limits.job_s gives it {JOB_S} s"
    assert f"[sandbox: {told}]" in done.stderr
    late = jobs.run("echo x > late", BASHD_JOB=name)
    assert (late.status, late.stdout) == (124, "")
    assert "bashd-sh: the job's time is over" in late.stderr
    assert not (jobs.bench.workspace / "late").exists()
    # Its neighbour in the same folder has its own time.
    other = jobs.run("echo other", BASHD_JOB=secrets.token_hex(4))
    assert (other.status, other.stdout) == (0, "other\n")


def test_without_a_job_each_call_has_the_whole_time(jobs: Jobs) -> None:
    assert jobs.run(f"sleep {FOREVER}").status == 124
    assert jobs.run("echo again").stdout == "again\n"


def test_what_a_job_calls_from_inside_ends_with_it(jobs: Jobs) -> None:
    length = unused_length()
    inner = f"{jobs.bench.shells[1]} -c 'echo inside; sleep {length}'; echo not reached"
    done = jobs.run(inner, BASHD_JOB=secrets.token_hex(4))
    assert (done.status, done.stdout) == (124, "inside\n")
    wait_until_gone(length)


def test_what_a_step_left_running_ends_with_the_job(jobs: Jobs) -> None:
    length = unused_length()
    line = f"setsid sleep {length} >/dev/null 2>&1 & echo left"
    assert jobs.run(line, BASHD_JOB=secrets.token_hex(4)).stdout == "left\n"
    assert is_running(length)
    wait_until_gone(length)


def test_a_task_of_an_opened_session_ends_with_its_time(jobs: Jobs) -> None:
    daemon, length = jobs.bench.daemon, unused_length()
    cwd = str(jobs.bench.workspace)

    def cli(*words: str) -> subprocess.CompletedProcess[str]:
        return daemon.cli(*words, env=jobs.env())

    opened = cli("session", "open", "--cwd", cwd, "--policy", "ci")
    session = opened.stdout.strip()
    started = cli("run", "--background", "--session", session, "--", f"sleep {length}")
    task = started.stdout.strip()
    assert cli("wait", task).returncode == 128 + 15
    wait_until_gone(length)
    refused = cli("run", "--json", "--session", session, "--", "true")
    assert refused.returncode == 124
    assert json.loads(refused.stdout)["error"]["code"] == "TIME_OVER"
    assert cli("session", "close", session).returncode == 0


def test_a_jobs_clock_goes_on_under_the_next_daemon(
    make_daemon: DaemonFactory,
    ordinary_user: Account,
    bwrap_for_users: None,
    jobs: Jobs,
) -> None:
    daemon = make_daemon(account=ordinary_user)
    cwd = str(daemon.make_workspace())
    env = {"XDG_CONFIG_HOME": str(jobs.config)}
    opened = daemon.cli("session", "open", "--cwd", cwd, "--policy", "ci", env=env)
    run = ("run", "--session", opened.stdout.strip(), "--")
    assert daemon.cli(*run, f"sleep {FOREVER}").returncode == 124
    daemon.kill()
    daemon.start_again()
    late = daemon.cli(*run, "true")
    assert late.returncode == 124
    assert "the job's time is over" in late.stderr
