"""The wheel in a virtual environment of its own, as `pipx` or `uv tool` make one."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bashd
from tests.support.accounts import as_user
from tests.support.stage import REPOSITORY

if TYPE_CHECKING:
    from tests.support.accounts import Account

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tool(reachable_tmp: Path) -> Path:
    """The program ``bashd`` of an environment into which the wheel was installed.

    Only what bashd depends on comes from the environment of the tests, so that no
    package index is needed.
    """
    root = reachable_tmp / "tool"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(root)
    python = root / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(root)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        timeout=50,
    )
    (wheel,) = root.glob("*.whl")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet"),
            *("--no-deps", "--no-index", "--no-compile", str(wheel)),
        ],
        check=True,
        capture_output=True,
        timeout=50,
    )
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = root / "lib" / version / "site-packages"
    # Appended, so that the wheel is found first; .pth files in there do not count.
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "dependencies.pth").write_text("".join(f"{p}\n" for p in sorted(places)))
    return root / "bin" / "bashd"


def run(tool: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(tool), *arguments],
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_the_wheel_that_runs(tool: Path):
    python = str(tool.with_name("python"))
    code = "import bashd; print(bashd.__file__)"
    done = subprocess.run(
        [python, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith(str(tool.parents[1])), done.stderr


def test_it_says_its_version(tool: Path):
    assert run(tool, "--version") == f"bashd {bashd.__version__}\n"


def test_it_finds_the_shipped_policies(tool: Path):
    run(tool, "policy", "check")


def test_it_would_install_itself_as_the_service(tool: Path):
    said = run(tool, "install", "--system", "--dry-run")
    assert "would write /etc/systemd/system/bashd.service" in said
    for name in ("bashd", "bashd-sh"):
        link = re.search(rf"would link /usr/local/bin/{name} to (\S+)", said)
        assert link is None or link[1] == str(tool.with_name(name))


def test_its_units_start_it(tool: Path):
    code = (
        "from bashd.cli.install_cmd import find_program, units_folder\n"
        "from bashd.cli.installation import Write, plan_install, system_scope\n"
        "steps = plan_install(system_scope(), find_program(), units_folder())\n"
        "print(*(s.text for s in steps if isinstance(s, Write)), units_folder())"
    )
    python = str(tool.with_name("python"))
    done = subprocess.run(
        [python, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert f"ExecStart={tool} serve" in done.stdout, done.stderr
    assert done.stdout.strip().endswith("/bashd/share/systemd")


def test_the_first_command_of_a_user_starts_a_daemon(
    tool: Path, ordinary_user: Account, bwrap_for_users: None
):
    words = ("run", "--mode", "workspace-write", "--", "echo from the wheel")
    done = as_user(ordinary_user, [str(tool), *words])
    assert (done.returncode, done.stdout) == (0, "from the wheel\n"), done.stderr
    status = as_user(ordinary_user, [str(tool), "status"]).stdout
    pid = re.search(r"pid: +(\d+)", status)
    assert pid is not None, status
    command = Path(f"/proc/{pid[1]}/cmdline").read_bytes().decode()
    assert command.startswith(str(tool.parent))
    as_user(ordinary_user, ["kill", pid[1]])
    while Path(f"/proc/{pid[1]}").exists():
        pass
