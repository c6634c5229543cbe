"""Attacks: first they work without walls, then they do not work behind them.

The control is the same command by the same user in the same session, under full access.
Nothing is aimed at but what the test has made.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.accounts import argv_as
from tests.support.stations import FULL_ACCESS, WORKSPACE_WRITE, Station

if TYPE_CHECKING:
    from bashd.client import SyncClient
    from bashd.core.model import RunResult

READ_AND_PRINT = "python3 -I -c 'import sys; print(open(sys.argv[1]).read())' "
CONNECT = (
    "python3 -I -c 'import socket, sys; s = socket.socket(1); s.settimeout(5);"
    ' s.connect(sys.argv[1].replace("@", "\\0", 1)); print(s.recv(16).decode())\' '
)
"""Connects to a path, or an abstract name after @, and prints what it is greeted with."""


@dataclass(frozen=True)
class Attack:
    """A command, and how to see whether it worked."""

    command: str
    worked: Callable[[RunResult], bool]
    undo: Callable[[], object] = lambda: None


def stopped(
    station: Station, attack: Attack, mode: str = WORKSPACE_WRITE, **options: Any
) -> RunResult:
    """Prove that *attack* works without walls and not in *mode*; return that result."""
    free = station.run(attack.command, FULL_ACCESS)
    assert attack.worked(free), f"the attack does not work unconfined: {free}"
    attack.undo()
    result = station.run(attack.command, mode, **options)
    assert not attack.worked(result), f"the attack worked under {mode}: {result}"
    attack.undo()
    return result


def prints(secret: str) -> Callable[[RunResult], bool]:
    """The attack works if *secret* comes out."""
    return lambda result: secret in result.stdout.text + result.stderr.text


def makes(path: Path) -> Callable[[RunResult], bool]:
    """The attack works if *path* is there afterwards."""
    return lambda _result: os.path.lexists(path)


def changes(path: Path, content: str = "canary\n") -> Callable[[RunResult], bool]:
    """The attack works if *path* has another content afterwards."""
    return lambda _result: path.read_text() != content


@contextlib.contextmanager
def listening(
    address: str, *, kind: int = socket.SOCK_STREAM, owner: int | None = None
) -> Generator[None]:
    """Greet whoever connects to a path, or to an abstract name after @, with ``deputy``."""
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(address.replace("@", "\0", 1))
        if not address.startswith("@"):
            Path(address).chmod(0o777)
            if owner is not None:
                os.chown(address, owner, -1)
        listener.listen()
        with serving(listener, lambda connection: connection.sendall(b"deputy")):
            yield
    if not address.startswith("@"):
        Path(address).unlink(missing_ok=True)


@contextlib.contextmanager
def serving(
    listener: socket.socket, answer: Callable[[socket.socket], object]
) -> Generator[None]:
    """Answer every connection in a thread of its own until the block ends."""
    over = threading.Event()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                if over.is_set():
                    return
                answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        # accept() only returns for a connection.
        with contextlib.suppress(OSError), socket.socket(listener.family) as last:
            last.connect(listener.getsockname())
        thread.join()


@contextlib.contextmanager
def running(
    station: Station, *argv: str, **env: str
) -> Generator[subprocess.Popen[bytes]]:
    """Run a program of the caller's outside, unconfined, until the block ends."""
    process = subprocess.Popen(
        argv_as(station.caller, list(argv)),
        env={**station.caller.environment(), **env},
        cwd=station.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def with_policies(
    station: Station,
    cwd: Path | None = None,
    environ: dict[str, str] | None = None,
    **policies: str,
) -> SyncClient:
    """Open a session of the caller's for whom *policies* exist, by name."""
    config = station.give(station.folder / f"config-{secrets.token_hex(4)}")
    for name, text in policies.items():
        station.make(f"{config.name}/bashd/policies/{name}.toml", text)
    own = {**station.environ, **(environ or {}), "XDG_CONFIG_HOME": str(config)}
    return station.open(cwd, environ=own)
