"""What the daemon's process gives away about itself: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bashd.daemon.process import is_kept
from tests.support.stage import Install

_REPOSITORY = Path(__file__).parents[3]
_SHOW = """
import os, resource, subprocess, sys
from pathlib import Path
from bashd.daemon import process
before = Path("/proc/self/environ").read_bytes()
process.forget_environment(os.environb)
print(before.count(b"hunter2"), Path("/proc/self/environ").read_bytes().count(b"hunter2"))
print(os.environ.get("MY_SECRET"), os.environ["HOME"], os.environ["LC_ALL"], flush=True)
# What it starts, by the C library's own idea of the environment:
os.execv("/usr/bin/env", ["env"]) if sys.argv[1:] else None
process.harden(os.environb)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] == int(os.environ["PATH"].split("=")[1]))
print(oct(os.umask(0)))
"""


def show(*arguments: str) -> list[str]:
    environment = {
        "MY_SECRET": "hunter2",
        "PGPASSWORD": "hunter2",
        "HOME": "/home/me",
        "LC_ALL": "C.UTF-8",
        "PATH": "/usr/bin:/n=128",
    }
    done = subprocess.run(
        [
            *("/bin/sh", "-c", 'ulimit -Sn 64; ulimit -Hn 128; exec "$@"', "sh"),
            *(sys.executable, "-c", _SHOW, *arguments),
        ],
        env=environment,
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_forgotten_variable_is_gone_from_proc_too():
    counts, kept, *_ = show()
    assert counts == "2 0"
    assert kept == "None /home/me C.UTF-8"


def test_the_fd_limit_is_the_hard_one_and_the_umask_is_private():
    *_, limit, umask = show()
    assert (limit, umask) == ("True", "0o77")


def test_what_is_started_later_has_what_was_kept_and_no_more():
    _, _, *environment = show("env")
    assert sorted(environment) == [
        "HOME=/home/me",
        "LC_ALL=C.UTF-8",
        "PATH=/usr/bin:/n=128",
    ]


@pytest.mark.parametrize(
    "name", ["AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "DATABASE_URL", "LD_PRELOAD"]
)
def test_only_what_the_daemon_needs_is_kept(name: str):
    assert not is_kept(name)
    assert is_kept("XDG_RUNTIME_DIR")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_another_process_of_the_same_uid_cannot_look_into_it(install: Install):
    """Positive control first: without the hardening, it can."""
    code = (
        "import os, subprocess, sys\n"
        "if sys.argv[1] == 'hardened':\n"
        "    from bashd.daemon import process\n"
        "    process.harden(os.environb)\n"
        "    os.environ['LATER'] = 'x'\n"
        # Only then: whoever changes its uid stops being dumpable by itself.
        "done = subprocess.run(['cat', f'/proc/{os.getpid()}/environ'],"
        " capture_output=True)\n"
        "print(done.returncode)\n"
    )
    for hardened, status in (("no", "0"), ("hardened", "1")):
        done = subprocess.run(
            [
                *("setpriv", "--reuid=65534", "--clear-groups", "--"),
                *(install.python, "-c", code, hardened),
            ],
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == status, done.stderr
