"""The blocking client library, speaking to a daemon as whoever the daemon serves.

A daemon checks who sends each request, so root cannot speak for a user: where caller
and tests differ, the client lives in a process of the caller's, and a proxy hands
calls, results and errors across. Callbacks (`on_output`, `on_task_done`) do not cross.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from bashd.client import connect_sync

if TYPE_CHECKING:
    from collections.abc import Generator

    from bashd.client import SyncClient
    from tests.support.daemons import RunningDaemon

_DRIVER = """
import os, pickle, sys
from bashd.client import connect_sync
calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

def answer(kind, value):
    pickle.dump((kind, value), answers)
    answers.flush()

try:
    with connect_sync(**pickle.load(calls)) as client:
        answer("value", None)
        while True:
            path, arguments, options = pickle.load(calls)
            target = client
            for name in path:
                target = getattr(target, name)
            try:
                answer("value", target(*arguments, **options) if arguments is not None
                       else target)
            except Exception as error:
                answer("error", error)
except EOFError:
    pass
except Exception as error:
    answer("error", error)
"""
"""Arguments of None ask for the attribute itself."""

_PLAIN = frozenset({"session", "sandbox_mode"})
"""What is read, not called, on a client."""


@contextlib.contextmanager
def client(
    daemon: RunningDaemon, *, cwd: Path | None, **options: Any
) -> Generator[SyncClient, None, None]:
    """Connect to *daemon* as its caller; *options* are those of `connect_sync`.

    Without *cwd* to a session that is among the options.
    """
    where = None if cwd is None else str(cwd)
    options = {"socket": str(daemon.socket), "cwd": where, **options}
    options.setdefault("environ", daemon.caller_env())
    if daemon.caller.uid == os.geteuid():
        with connect_sync(**options) as direct:
            yield direct
        return
    process = subprocess.Popen(
        daemon.argv_as_caller([daemon.install.python, "-c", _DRIVER]),
        env=daemon.caller_env(),
        cwd=daemon.caller.home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = _Line(process.stdin, process.stdout)
        line.ask(options)
        yield cast("SyncClient", _Proxy(line, ()))
    finally:
        # The end of its input ends the driver.
        process.communicate(timeout=30)


class _Line:
    """Calls out, answers back."""

    def __init__(self, calls: IO[bytes], answers: IO[bytes]) -> None:
        self._calls = calls
        self._answers = answers

    def ask(self, call: object) -> object:
        pickle.dump(call, self._calls)
        self._calls.flush()
        kind, value = pickle.load(self._answers)
        if kind == "error":
            raise value
        return value


class _Proxy:
    """Stands for a client, or for something that hangs on one."""

    def __init__(self, line: _Line, path: tuple[str, ...]) -> None:
        self._line = line
        self._path = path

    def __getattr__(self, name: str) -> Any:
        path = (*self._path, name)
        if name in _PLAIN and not self._path:
            return self._line.ask((path, None, None))
        return _Proxy(self._line, path)

    def __call__(self, *arguments: object, **options: object) -> object:
        return self._line.ask((self._path, arguments, options))
