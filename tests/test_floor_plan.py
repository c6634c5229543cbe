"""The import law holds and would be noticed if it did not; what ships is in order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bashd.core import errors
from tests.support.stage import REPOSITORY

_SETTINGS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
CONTRACTS = [
    contract["name"] for contract in _SETTINGS["tool"]["importlinter"]["contracts"]
]
FLOORS, PURE, TOOLS, CTYPES, INNER, LAUNCHER, FRONT_DOORS = CONTRACTS


def lint_imports(folder: Path) -> dict[str, bool]:
    """Return for each contract whether the tree in *folder* keeps it."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=folder,
        # The copy in *folder* must win over an installed bashd.
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    verdicts = {
        name: f"{name} KEPT" in done.stdout
        for name in CONTRACTS
        if f"{name} KEPT" in done.stdout or f"{name} BROKEN" in done.stdout
    }
    assert set(verdicts) == set(CONTRACTS), done.stdout + done.stderr
    assert (done.returncode == 0) == all(verdicts.values())
    return verdicts


@pytest.fixture
def copied_tree(tmp_path: Path) -> Path:
    """A copy of the package, to plant violations in."""
    shutil.copytree(
        REPOSITORY / "bashd",
        tmp_path / "bashd",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_import_law_is_kept():
    assert all(lint_imports(REPOSITORY).values())


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("core/model.py", "import bashd.protocol.messages", {FLOORS}),
        ("client/__init__.py", "import bashd.daemon", {FLOORS}),
        ("core/model.py", "import socket", {PURE}),
        ("protocol/messages.py", "import anyio", {PURE}),
        ("tools/__init__.py", "import subprocess", {TOOLS}),
        ("daemon/__init__.py", "import ctypes", {CTYPES}),
        ("launcher/wire.py", "import ctypes", {CTYPES}),
        ("daemon/__init__.py", "import bashd.launcher.keeper", {INNER}),
        ("launcher/wire.py", "import threading", {LAUNCHER}),
        ("cli/__init__.py", "import trio", {FRONT_DOORS}),
    ],
)
def test_a_planted_violation_is_caught(
    copied_tree: Path, module: str, line: str, broken: set[str]
):
    path = copied_tree / "bashd" / module
    path.write_text(f"{path.read_text()}\n{line}\n")
    verdicts = lint_imports(copied_tree)
    assert {name for name, kept in verdicts.items() if not kept} >= broken


def error_classes() -> list[type[errors.BashdError]]:
    """Return every class of the error tree but its abstract root."""
    found = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.BashdError)
    ]
    return [cls for cls in found if cls is not errors.BashdError]


def test_every_error_class_has_codes_of_its_own():
    classes = error_classes()
    assert len({cls.code for cls in classes}) == len(classes)
    assert len({cls.rpc_code for cls in classes}) == len(classes)


def test_every_error_code_comes_back_as_the_class_that_was_sent():
    for cls in error_classes():
        assert type(errors.error_from_wire(cls.code, "text")) is cls


def test_every_error_code_is_documented_with_its_number():
    readme = (REPOSITORY / "README.md").read_text()
    documented = dict(re.findall(r"^\| `([A-Z_]+)` \| (-\d+) \|", readme, re.MULTILINE))
    assert documented == {cls.code: str(cls.rpc_code) for cls in error_classes()}


def test_the_top_level_holds_what_the_readme_promises_and_nothing_else():
    done = subprocess.run(
        # The checkout may belong to somebody else than root, who runs this.
        ["git", "-c", "safe.directory=*", "-C", REPOSITORY, "ls-files"],
        capture_output=True,
        text=True,
        check=True,
    )
    top = {path.split("/")[0] for path in done.stdout.split()}
    assert {name for name in top if not name.startswith(".")} <= {
        *("pyproject.toml", "README.md", "LICENSE", "Vagrantfile", "dev"),
        *("bashd", "policies", "systemd", "tests"),
    }
