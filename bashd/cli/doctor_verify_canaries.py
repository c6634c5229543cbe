"""What ``bashd doctor --verify`` aims at: files, a secret, sockets, a process, all ours."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

_SCRUBBED: Final = "VERIFY_API_TOKEN"
"""A credential of the caller's: it must not get into a command."""
_KEPT: Final = "VERIFY_TOKEN"
"""A credential of a process outside, of the same user."""
_POLICIES: Final = {
    "verify": 'mode = "workspace-write"\nmasked = [{masked}]\n',
    "offline": 'mode = "workspace-write"\nnetwork = "none"\n',
}


@dataclass(frozen=True, slots=True)
class Canaries:
    """What there is to aim at; all of it ours."""

    folder: Path
    at: dict[str, str]
    """As `doctor_verify_inside` takes it."""
    environ: dict[str, str]


@contextlib.contextmanager
def set_up() -> Generator[Canaries]:
    """Make everything; nothing is left of it afterwards."""
    # In the home: /tmp is private to cells, and the home is where people work.
    with (
        tempfile.TemporaryDirectory(prefix=".bashd-verify-", dir=Path.home()) as name,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name).resolve()
        token = secrets.token_hex(16)
        for made in ("workspace", "outside", "secret", "state", "run", "config"):
            (folder / made).mkdir(mode=0o700)
        for path in ("outside/file", "secret/key", "secret-file"):
            (folder / path).write_text(token)
        process = stack.enter_context(_process(token))
        at = {
            "workspace": str(folder / "workspace"),
            "outside": str(folder / "outside"),
            "secret": str(folder / "secret"),
            "secret_file": str(folder / "secret-file"),
            "state": str(folder / "state"),
            "state_file": "lock-canary",
            "daemon": str(folder / "run/bashd.sock"),
            "token": token,
            "variables": f"{_KEPT} {_SCRUBBED}",
            "pid": str(process.pid),
            "abstract": f"bashd-verify-{token}",
            "host_tmp": str(stack.enter_context(_file("/tmp", token))),  # noqa: S108
            "host_shm": str(stack.enter_context(_file("/dev/shm", token))),  # noqa: S108
        }
        (folder / "state/lock-canary").write_text(token)
        at["port"] = stack.enter_context(_listeners(folder, at["abstract"]))
        yield Canaries(folder, at, _environ(folder, token))


def _environ(folder: Path, token: str) -> dict[str, str]:
    environ = dict(os.environ)
    environ["XDG_CONFIG_HOME"] = str(folder / "config")
    environ[_SCRUBBED] = token
    policies = folder / "config/bashd/policies"
    policies.mkdir(parents=True)
    masked = ", ".join(json.dumps(str(folder / n)) for n in ("secret", "secret-file"))
    for name, text in _POLICIES.items():
        (policies / f"{name}.toml").write_text(text.format(masked=masked))
    return environ


@contextlib.contextmanager
def _process(token: str) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["sleep", "600"],  # noqa: S607 - of whatever PATH; it is only a canary
        stdin=subprocess.DEVNULL,
        env={**os.environ, _KEPT: token},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _file(folder: str, content: str) -> Generator[Path]:
    path = Path(folder) / f"bashd-verify-{secrets.token_hex(8)}"
    path.write_text(content)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _listeners(folder: Path, abstract: str) -> Generator[str]:
    """Listen on a path, an abstract name and a port; yields the port."""
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        for family, address in (
            (socket.AF_UNIX, str(folder / "outside/socket")),
            (socket.AF_UNIX, "\0" + abstract),
            (socket.AF_INET, ("127.0.0.1", 0)),
        ):
            listener = stack.enter_context(socket.socket(family))
            listener.bind(address)
            listener.listen()
            sockets.append(listener)
        stop_r, stop_w = os.pipe()
        greeter = threading.Thread(target=_greet, args=(sockets, stop_r))
        greeter.start()
        try:
            yield str(sockets[-1].getsockname()[1])
        finally:
            os.close(stop_w)
            greeter.join()
            os.close(stop_r)


def _greet(sockets: list[socket.socket], stop_fd: int) -> None:
    """Say something to whoever connects, until *stop_fd* ends."""
    while True:
        ready = select.select([*(s.fileno() for s in sockets), stop_fd], [], [])[0]
        if stop_fd in ready:
            return
        for listener in (s for s in sockets if s.fileno() in ready):
            connection = listener.accept()[0]
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"hello")


def put_back(canaries: Canaries) -> None:
    """Put the canaries back and take away what attempts have made."""
    outside, workspace = canaries.folder / "outside", canaries.folder / "workspace"
    for name in ("file", "removable"):
        (outside / name).write_text(canaries.at["token"])
        (outside / name).chmod(0o600)
    for name in ("new", "moved"):
        (outside / name).unlink(missing_ok=True)
    Path(canaries.at["host_tmp"]).write_text(canaries.at["token"])
    for path in workspace.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    # What git takes for a repository; git itself is not needed.
    for name in (".git/objects", ".git/refs", ".git/hooks"):
        (workspace / name).mkdir(parents=True)
    (workspace / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (workspace / ".git/config").write_text("[core]\n\tbare = false\n")
