"""Package managers build and install behind the walls, without any network.

What they keep under the home by default goes to the session's own scratch, or the result
says what was refused and which line of a policy would allow it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.adversarial.attack import with_policies
from tests.support.stations import (
    CONFINING,
    ROOT_BWRAP,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    USER_BWRAP,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
    sys_python,
)

TWO = on(USER_LANDLOCK, SERVED_BWRAP)
"""Both runners and both kinds of daemon: these take seconds."""
ORDINARY = on(USER_BWRAP, USER_LANDLOCK, SERVED_BWRAP, SERVED_LANDLOCK)
"""Where the home is a test user's, so that a hole would spoil nothing."""


def not_denied(station: Station, command: str, **options: Any) -> str:
    """Run a command that must succeed and be refused nothing; return its stdout."""
    result = station.run(command, **options)
    assert result.exit_code == 0, result
    assert result.sandbox is not None
    assert not result.sandbox.denied, result
    return result.stdout.text


# -- pip ----------------------------------------------------------------------------------

BACKEND = '''
"""Builds the one wheel there is; it needs nothing but Python."""
import zipfile

NAME, INFO = "cabin-1.0", "cabin-1.0.dist-info"

def _write(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)

def build_wheel(folder, config_settings=None, metadata_directory=None):
    files = {
        "cabin.py": open("cabin.py").read(),
        f"{INFO}/METADATA": "Metadata-Version: 2.1\\nName: cabin\\nVersion: 1.0\\n",
        f"{INFO}/WHEEL": "Wheel-Version: 1.0\\nGenerator: x\\n"
        "Root-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{INFO}/entry_points.txt": "[console_scripts]\\ncabin = cabin:main\\n",
    }
    files[f"{INFO}/RECORD"] = "".join(f"{name},,\\n" for name in files)
    _write(f"{folder}/{NAME}-py3-none-any.whl", files)
    return f"{NAME}-py3-none-any.whl"
'''
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "cabin"
version = "1.0"
"""


@pytest.fixture
def python_package(station: Station) -> Path:
    """Sources of a package that builds without anything from outside."""
    station.make("workspace/cabin/backend.py", BACKEND)
    station.make("workspace/cabin/pyproject.toml", PROJECT)
    station.make("workspace/cabin/cabin.py", "def main():\n    print('built')\n")
    return station.workspace / "cabin"


@TWO
def test_pip_builds_a_wheel_and_installs_it(station: Station, python_package: Path):
    del python_package
    script = f"""
        set -e
        {sys_python()} -m venv v
        v/bin/pip install -q --no-index --disable-pip-version-check ./cabin
        v/bin/cabin
    """
    assert not_denied(station, script, timeout_ms=50_000) == "built\n"


# -- npm ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def node_path() -> str:
    """PATH with node and npm on it; a system's own are preferred."""
    node = shutil.which("node", path="/usr/local/bin:/usr/bin") or shutil.which("node")
    if node is None or shutil.which("npm", path=str(Path(node).parent)) is None:
        pytest.skip("npm or node is not installed")
    return f"{Path(node).parent}:/usr/local/bin:/usr/bin:/bin"


@TWO
def test_npm_installs_a_folder_packs_it_and_runs_its_scripts(
    station: Station, node_path: str
):
    station.make(
        "workspace/lib/package.json",
        '{"name": "cabin", "version": "1.0.0", "main": "index.js",'
        ' "scripts": {"prepack": "node -e \\"require(\'fs\').writeFileSync('
        "'packed', 'x')\\\"\"}}",
    )
    station.make("workspace/lib/index.js", "module.exports = () => 'linked';\n")
    station.make(
        "workspace/app/package.json",
        '{"name": "app", "version": "1.0.0", "private": true,'
        ' "scripts": {"start": "node start.js", "test": "exit 3"}}',
    )
    station.make("workspace/app/start.js", "console.log(require('cabin')());\n")
    quiet = "--offline --no-audit --no-fund --silent"
    script = f"""
        set -e
        cd app
        npm install {quiet} ../lib && npm start --silent
        (cd ../lib && npm pack {quiet} > /dev/null && ls packed)
        npm install {quiet} ../lib/cabin-1.0.0.tgz && npm start --silent
        npm test --silent || echo tests end with $?
    """
    said = not_denied(station, script, env={"PATH": node_path}, timeout_ms=50_000)
    assert said.splitlines() == ["linked", "packed", "linked", "tests end with 3"]


# -- cargo --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def cargo_path(reachable_tmp: Path) -> str:
    """PATH with cargo and rustc on it, where every account can execute them."""
    path = f"{os.environ['PATH']}:{Path.home()}/.cargo/bin"
    if shutil.which("cargo", path=path) is None:
        pytest.skip("cargo is not installed")
    asked = subprocess.run(
        ["rustc", "--print", "sysroot"],
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    toolchain = Path(asked.stdout.strip())
    if toolchain.is_relative_to(Path.home()):
        toolchain = _within_reach(toolchain, reachable_tmp / "toolchain")
    return f"{toolchain}/bin:/usr/bin:/bin"


def _within_reach(toolchain: Path, copy: Path) -> Path:
    """Link a toolchain of some home into a place that others can enter."""
    for part in ("bin", "lib"):
        shutil.copytree(
            toolchain / part, copy / part, symlinks=True, copy_function=_link_or_copy
        )
    return copy


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


@on(ROOT_BWRAP, USER_LANDLOCK, SERVED_BWRAP)
def test_cargo_builds_tests_and_runs_a_crate(station: Station, cargo_path: str):
    manifest = '[package]\nname = "cabin"\nversion = "1.0.0"\nedition = "2021"\n'
    station.make("workspace/cabin/Cargo.toml", manifest)
    station.make(
        "workspace/cabin/src/main.rs",
        'fn main() { println!("built") }\n#[test]\nfn holds() { assert_eq!(1, 1) }\n',
    )
    script = """
        set -e
        cd cabin
        cargo build -q --offline && target/debug/cabin
        cargo test -q --offline 2>&1 | grep -o '1 passed'
    """
    said = not_denied(station, script, env={"PATH": cargo_path}, timeout_ms=50_000)
    assert said == "built\n1 passed\n"


# -- caches under the home ----------------------------------------------------------------


@ORDINARY
def test_i13_a_cache_in_the_home_is_refused_by_name_and_the_cure_is_told(
    station: Station,
):
    home = station.give(station.folder / "home")
    station.give(home / ".cache")
    session = station.open(environ=station.environ | {"HOME": str(home)})
    make = "import pathlib; (pathlib.Path.home() / '.cache/x').mkdir(parents=True)"
    result = session.run(f'python3 -c "{make}"', mode=WORKSPACE_WRITE)
    assert result.exit_code == 1
    assert result.sandbox is not None
    assert result.sandbox.denied
    (denial,) = result.sandbox.denials
    assert denial.path in (f"{home}/.cache/x", f"{home}/.cache/")
    explained = station.daemon.cli("explain", "--policy", result.run_id)
    assert explained.returncode == 0, explained
    assert f'writable = ["{home}/.cache"]' in explained.stdout


@pytest.mark.parametrize("mode", CONFINING)
def test_i13_caches_that_tools_ask_for_are_the_sessions_own(
    station: Station, mode: str
):
    names = "PIP_CACHE_DIR UV_CACHE_DIR npm_config_cache GOCACHE"
    command = f"for name in {names}; do mkdir -p ${{!name}} && touch ${{!name}}/x; done"
    result = station.run(f"{command} && echo made", mode)
    assert result.stdout.text == "made\n", result
    # Whoever names a folder of their own keeps it.
    own = {"PIP_CACHE_DIR": "/elsewhere"}
    named = station.run("echo $PIP_CACHE_DIR", mode, env=own)
    assert named.stdout.text == "/elsewhere\n"


@ORDINARY
def test_i13_a_policy_opens_one_cache_and_nothing_beside_it(station: Station):
    home = station.give(station.folder / "home")
    for folder in (".cargo", ".cargo/registry", ".cache"):
        station.give(home / folder)
    session = with_policies(
        station,
        cached=f'mode = "workspace-write"\nwritable = ["{home}/.cargo/registry"]\n',
    )
    opened = session.run(f"touch {home}/.cargo/registry/index", policy="cached")
    assert opened.exit_code == 0, opened
    beside = session.run(f"touch {home}/.cache/x", policy="cached")
    assert beside.exit_code == 1
    assert beside.sandbox is not None
    assert beside.sandbox.denied
    assert not (home / ".cache/x").exists()
