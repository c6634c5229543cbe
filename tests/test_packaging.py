"""What is built carries what bashd needs at run time, and works where it is unpacked."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import bashd
from tests.support.stage import REPOSITORY


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        timeout=50,
    )
    return folder


@pytest.fixture
def wheel(built: Path, tmp_path: Path) -> Path:
    """The wheel, unpacked."""
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def shipped(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    }


def test_the_wheel_carries_every_policy_and_unit(wheel: Path):
    share = wheel / "bashd" / "share"
    for kind in ("policies", "systemd"):
        assert shipped(share / kind) == shipped(REPOSITORY / kind)


def test_the_wheel_carries_every_module_and_no_test(wheel: Path):
    modules = {path for path in shipped(REPOSITORY / "bashd") if path.endswith(".py")}
    assert modules <= shipped(wheel / "bashd")
    assert {path.name for path in wheel.iterdir()} == {
        "bashd",
        f"bashd-{bashd.__version__}.dist-info",
    }


def test_the_unpacked_wheel_runs_and_finds_its_policies(wheel: Path):
    code = (
        f"import sys; sys.path.insert(0, {str(wheel)!r}); import bashd\n"
        f"assert bashd.__file__.startswith({str(wheel)!r}), bashd.__file__\n"
        "from bashd.cli.main import main\n"
        "sys.argv = ['bashd', 'policy', 'check']\n"
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_sdist_is_enough_to_develop_with(built: Path):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"dev", "LICENSE", "README.md", "Vagrantfile", "tests/conftest.py"}
    assert wanted | {"systemd/bashd.service", "policies/read-only.toml"} <= names
