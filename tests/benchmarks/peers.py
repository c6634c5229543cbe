"""Who else does the same work, and with which configuration.

What is written here is what the report shows, so that anyone can object. Every peer
gets a profile as near to bashd's mode as it has one: everything readable; for
workspace-write the workspace writable, for read-only nothing but temporary files.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import WORKSPACE_WRITE
from tests.benchmarks.toolbox import Toolbox
from tests.support.accounts import Account


@dataclass(frozen=True, slots=True)
class Ground:
    """Where peers work."""

    account: Account
    workspace: Path
    folder: Path
    """For their configuration; the account may write there."""


@dataclass(frozen=True, slots=True)
class Peer:
    """How one of them is called."""

    name: str
    what: list[Any]
    """For a driver."""
    shown: str
    """Command line and configuration, as a reader would type it."""
    own_python: str = ""
    """Interpreter of the driver that calls it; the daemon's by default."""


NOTES = {
    "bash": "no walls at all: the floor",
    "bwrap": "a new sandbox a call with namespaces and mounts like those of a cell;"
    " no Landlock, no seccomp, no masked secrets; network on",
    "sandlock": "Landlock and seccomp through its Python library, in the caller's own"
    " process; no namespaces; the network is off unless allowed",
    "codex": "the program itself, without the node script in front of it; bubblewrap"
    " and seccomp; its read-only mode has no network",
    "srt": "its command line; bubblewrap, seccomp and two proxies a call: it has no"
    " mode without them; the network is reached through them only",
}


def peers(box: Toolbox, ground: Ground, mode: str) -> list[Peer]:
    """Return everybody who can be called here."""
    makers: dict[str, Callable[[], Peer]] = {
        "bash": lambda: _spawned("bash", ["bash", "-c", "true"], ground),
        "bwrap": lambda: _spawned("bwrap", bwrap_argv(ground, mode), ground),
    }
    if box.sandlock_python:
        makers["sandlock"] = lambda: _sandlock(box, ground, mode)
    if box.codex:
        makers["codex"] = lambda: _codex(box, ground, mode)
    if box.srt:
        makers["srt"] = lambda: _srt(box, ground, mode)
    return [make() for make in makers.values()]


def bwrap_argv(ground: Ground, mode: str, command: str = "true") -> list[str]:
    """Return the plainest call that confines as a cell does, less Landlock.

    The same namespaces and mounts of the same kind; root takes no user namespace.
    """
    bwrap = shutil.which("bwrap") or "bwrap"
    who = ["--cap-drop", "ALL"] if ground.account.is_root else ["--unshare-user"]
    workspace = str(ground.workspace)
    writable = ["--bind", workspace, workspace] if mode == WORKSPACE_WRITE else []
    return [
        *(bwrap, *who, "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
        *("--tmpfs", "/tmp", *writable, "--chdir", workspace),
        *("--", "bash", "-c", command),
    ]


def _spawned(
    name: str,
    argv: list[str],
    ground: Ground,
    env: dict[str, str] | None = None,
    config: str = "",
) -> Peer:
    variables = [f"{key}={shlex.quote(value)}" for key, value in (env or {}).items()]
    shown = " ".join([*variables, shlex.join(argv)]) + config
    return Peer(name, ["spawn", argv, env, str(ground.workspace)], shown)


def _sandlock(box: Toolbox, ground: Ground, mode: str) -> Peer:
    readable, writable = ["/"], ["/dev/null", "/tmp"]
    cwd = str(ground.workspace)
    if mode == WORKSPACE_WRITE:
        writable.append(cwd)
    shown = (
        f"Sandbox(fs_readable={readable}, fs_writable={writable}, cwd={cwd!r})"
        '.run(["bash", "-c", "true"])'
    )
    what = ["sandlock", readable, writable, cwd, "true"]
    return Peer("sandlock", what, shown, box.sandlock_python)


def _codex(box: Toolbox, ground: Ground, mode: str) -> Peer:
    home = _own_folder(ground, "codex")
    config = ["-c", f"sandbox_mode={mode}"]
    if mode == WORKSPACE_WRITE:
        config += ["-c", "sandbox_workspace_write.network_access=true"]
    argv = [box.codex, "sandbox", *config, "--", "bash", "-c", "true"]
    return _spawned("codex", argv, ground, {"CODEX_HOME": str(home)})


def _srt(box: Toolbox, ground: Ground, mode: str) -> Peer:
    writable = [str(ground.workspace)] if mode == WORKSPACE_WRITE else []
    settings = {
        "network": {"allowedDomains": [], "deniedDomains": []},
        "filesystem": {"denyRead": [], "allowWrite": writable, "denyWrite": []},
    }
    own = _own_folder(ground, "srt")
    path = own / f"{mode}.json"
    path.write_text(json.dumps(settings))
    # It leaves sockets behind, named by pid: a later call finds its name taken.
    env = {**box.srt_env, "TMPDIR": str(_own_folder(ground, "srt-tmp"))}
    argv = [*box.srt, "--settings", str(path), "-c", "true"]
    config = f"\n# {path.name}: {json.dumps(settings)}"
    return _spawned("srt", argv, ground, env, config)


def _own_folder(ground: Ground, name: str) -> Path:
    folder = ground.folder / name
    folder.mkdir(exist_ok=True)
    os.chown(folder, ground.account.uid, ground.account.gid)
    return folder
