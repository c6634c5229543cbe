"""Goal: be taken for something else on the way in.

What a caller hands over (environment, command, folder, names in a policy) must arrive as
that and nothing else: never as an option, never as another argument, and never as code
of a process that has no walls yet.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bashd.core.errors import BashdError, ConfigError, InvalidParamsError
from tests.adversarial.attack import with_policies
from tests.support.accounts import argv_as
from tests.support.stations import (
    FULL_ACCESS,
    READ_ONLY,
    ROOT_BWRAP,
    ROOT_LANDLOCK,
    SERVED_LANDLOCK,
    USER_BWRAP,
    WORKSPACE_WRITE,
    Station,
    on,
)

LIBRARY = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* Says where it got into: a process with walls, or one without. */
__attribute__((constructor)) static void enter(void) {
    char line[256], walls[16] = "?";
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "NoNewPrivs: %15s", walls);
    if (status) fclose(status);
    const char *names[] = {getenv("OUTSIDE"), getenv("INSIDE")};
    for (int i = 0; i < 2; i++) {
        int fd = names[i] ? open(names[i], O_WRONLY | O_APPEND | O_CREAT, 0666) : -1;
        if (fd >= 0) { dprintf(fd, "%s\n", walls); close(fd); }
    }
}
"""


@pytest.fixture
def library(station: Station) -> Path:
    """A library that leaves a trace wherever it is loaded."""
    source = station.make("workspace/library.c", LIBRARY)
    library = station.workspace / "library.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True
    )
    library.chmod(0o755)
    return library


@pytest.mark.parametrize("how", ["ambient", "of the call"])
def test_a_start_up_variable_acts_behind_the_walls_only(
    station: Station, library: Path, how: str
):
    """The shell's, the loader's and the languages': all at once."""
    outside, inside = station.outside / "trace", station.workspace / "trace"
    script = station.make("workspace/start-up", f"echo shell >> {outside}\n")
    station.make(
        "workspace/sitecustomize.py",
        f"open({str(outside)!r}, 'a').write('python\\n')\n",
    )
    touch = f"touch {outside}"
    hostile = {
        "OUTSIDE": str(outside),
        "INSIDE": str(inside),
        "LD_PRELOAD": str(library),
        "LD_AUDIT": str(library),
        "LD_LIBRARY_PATH": str(station.workspace),
        "GCONV_PATH": str(station.workspace),
        "GLIBC_TUNABLES": "glibc.malloc.check=3",
        "BASH_ENV": str(script),
        "ENV": str(script),
        "SHELLOPTS": "xtrace",
        "PS4": f"$({touch})",
        "PROMPT_COMMAND": touch,
        "BASH_FUNC_true%%": f"() {{ {touch}; }}",
        "PYTHONSTARTUP": str(script),
        "PYTHONPATH": str(station.workspace),
        "PYTHONHOME": str(station.workspace),
        "NODE_OPTIONS": f"--require={script}",
        "PERL5OPT": f"-M{script}",
        "GIT_SSH_COMMAND": touch,
        "GIT_EXTERNAL_DIFF": touch,
        "EDITOR": touch,
    }
    command = "true; /bin/true; /usr/bin/python3 -c pass 2>/dev/null; echo ran"
    session, own = station.client, hostile
    if how == "ambient":
        session, own = station.open(environ=station.environ | hostile), None
    free = session.run(command, mode=FULL_ACCESS, env=own)
    assert "ran" in free.stdout.text, free
    assert "0" in outside.read_text().split(), "without walls it acts outside"
    outside.unlink()
    inside.unlink()

    for mode in (WORKSPACE_WRITE, READ_ONLY):
        walled = session.run(command, mode=mode, env=own)
        assert "ran" in walled.stdout.text, walled
        assert not outside.exists(), mode
    # It did act, and in processes with walls alone.
    assert set(inside.read_text().split()) == {"1"}


ODD_COMMANDS = (
    *("-c", "--help", "-- echo x", "--", "-i", "-", "+x", ""),
    *("echo a\r", "echo a\r\necho b", "\recho x", "echo 'a\nb'", "\n\n\necho x\n"),
    *("echo \x01\x1b[31m\x7f", "echo \u202eabc\u2066", "echo \u0065\u0301"),
    *(
        "exit 125",
        "exec -a -bash sh -c 'echo $0'",
        "echo $0 $# $*",
        "set -- a; echo $1",
    ),
)


def test_an_odd_command_is_what_bash_makes_of_it(station: Station):
    for command in ODD_COMMANDS:
        plain = ["env", "-i", "PATH=/usr/bin:/bin", "bash", "-c", command]
        # As bytes: text would have its line ends changed.
        wanted = subprocess.run(
            argv_as(station.caller, plain),
            cwd=station.workspace,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        got = station.run(command)
        assert (got.exit_code, got.stdout.text) == (
            wanted.returncode,
            wanted.stdout.decode(),
        ), repr(command)


def test_what_can_be_no_command_is_a_clear_error(station: Station):
    for command in ("a\0b", "echo \ud800", "x" * 40_000_000):
        with pytest.raises(BashdError) as caught:
            station.run(command)
        assert str(caught.value), "it says why"
    assert station.text("echo fine") == "fine\n"


ODD_FOLDERS = (
    *("-x", "--bind", "a b", "a,b", "a\nb", "a\\nb", "*", "[a]", "$HOME", "'q'", '"'),
    *("a:b", "~", "%s", "é\u202e"),
)


@on(ROOT_BWRAP, USER_BWRAP, ROOT_LANDLOCK, SERVED_LANDLOCK)
def test_a_folder_of_any_name_is_that_folder(station: Station):
    outside = station.give(station.outside / "b")
    for name in ODD_FOLDERS:
        folder = station.give(station.workspace / name)
        got = station.run("pwd -P && echo in > made", workdir=str(folder))
        assert got.exit_code == 0, (name, got)
        assert (folder / "made").read_text() == "in\n"
    for name in ODD_FOLDERS:
        # As a session's workspace, the only writable one.
        folder = station.give(station.outside / name)
        with station.another(folder) as session:
            done = session.run(
                f"echo in > made; echo out > {outside}/x", mode=WORKSPACE_WRITE
            )
        assert done.exit_code != 0
        assert (folder / "made").read_text() == "in\n", name
        assert not (outside / "x").exists(), name


def test_a_name_in_a_policy_grants_and_hides_that_and_nothing_else(station: Station):
    names = [name for name in ODD_FOLDERS if name not in ("*", "[a]", "a\nb")]
    granted = [station.give(station.outside / name) for name in names]
    secret = [station.make(f"secret {name}", "hidden\n") for name in names]
    other = station.make("outside/other")
    session = with_policies(
        station,
        odd='mode = "workspace-write"\n'
        f"writable = {json.dumps([str(path) for path in granted])}\n"
        f"masked = {json.dumps([str(path) for path in secret])}\n",
    )
    for path in granted:
        done = session.run("echo in > made", policy="odd", workdir=str(path))
        assert done.exit_code == 0, (path, done)
    seen = session.run(f"cat {station.folder}/secret*; echo x > {other}", policy="odd")
    assert "hidden" not in seen.stdout.text
    assert other.read_text() == "canary\n"
    assert "hidden" in station.text(f"cat {station.folder}/secret*")


def test_a_name_that_no_line_can_hold_is_a_clear_error(station: Station):
    session = with_policies(
        station, odd='mode = "workspace-write"\nwritable = ["/srv/a\\n--bind"]\n'
    )
    with pytest.raises(ConfigError, match="control characters"):
        session.run("true", policy="odd")
    with pytest.raises(InvalidParamsError, match="UTF-8"):
        station.run("true", workdir=f"{station.workspace}/\udcff")


def test_the_callers_path_and_shell_decide_nothing_before_the_walls(station: Station):
    """Whatever is started outside is found where the system keeps it."""
    trace = station.outside / "trace"
    for name in ("bash", "bwrap", "python3", "sh", "env"):
        fake = station.make(f"workspace/bin/{name}", f"#!/bin/sh\ntouch {trace}\n")
        fake.chmod(0o755)
    environ = station.environ | {
        "PATH": f"{station.workspace}/bin:/usr/bin:/bin",
        "SHELL": f"{station.workspace}/bin/bash",
    }
    session = station.open(environ=environ)
    assert session.run("echo fine", mode=WORKSPACE_WRITE).stdout.text == "fine\n"
    session.run("bash; sh; env", mode=WORKSPACE_WRITE)
    assert not trace.exists()
