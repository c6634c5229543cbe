"""Stations: a client with a fresh session of its own on a daemon that tests share.

Six combinations of who the daemon runs as, whom it serves and which runner confines.
Starting a daemon costs a second, opening a session a few milliseconds, so daemons live
for the whole test session (one for each combination and set of settings) while every
test gets its own session, workspace and a folder beside the workspace that no session
may write to.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bashd.core.errors import UnknownSessionError
from tests.support.accounts import Account, as_user
from tests.support.callers import client
from tests.support.enclosure import describe

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Generator, Iterator

    from bashd.client import SyncClient
    from bashd.core.model import RunResult
    from tests.conftest import DaemonFactory
    from tests.support.daemons import RunningDaemon, Settings
    from tests.support.stage import Install

READ_ONLY = "read-only"
WORKSPACE_WRITE = "workspace-write"
FULL_ACCESS = "danger-full-access"
CONFINING = (READ_ONLY, WORKSPACE_WRITE)

Combination = tuple[str, str]
"""``root``, ``user`` or ``served`` (a user by a root daemon), and the runner."""
ROOT_BWRAP = ("root", "bwrap")
ROOT_LANDLOCK = ("root", "landlock")
USER_BWRAP = ("user", "bwrap")
USER_LANDLOCK = ("user", "landlock")
SERVED_BWRAP = ("served", "bwrap")
SERVED_LANDLOCK = ("served", "landlock")
ALL = (
    *(ROOT_BWRAP, ROOT_LANDLOCK, USER_BWRAP),
    *(USER_LANDLOCK, SERVED_BWRAP, SERVED_LANDLOCK),
)
OWN = ROOT_BWRAP if os.geteuid() == 0 else USER_BWRAP
"""Serves whoever runs the tests, for what has to speak to a daemon from here."""
UNDER_BWRAP = (ROOT_BWRAP, USER_BWRAP, SERVED_BWRAP)
UNDER_LANDLOCK = (ROOT_LANDLOCK, USER_LANDLOCK, SERVED_LANDLOCK)


def on(*combinations: Combination) -> pytest.MarkDecorator:
    """Run a test on these combinations only."""
    return pytest.mark.parametrize("station", combinations, ids="-".join, indirect=True)


@dataclass
class Station:
    """One session of one caller, and the places it works in."""

    daemon: RunningDaemon
    client: SyncClient
    folder: Path
    """Belongs to the caller; holds `workspace` and `outside`."""
    workspace: Path
    outside: Path
    """Beside the workspace: the caller may write there, its confined commands not."""
    environ: dict[str, str]
    """What the caller's environment is."""
    others: contextlib.ExitStack = field(repr=False)

    @property
    def caller(self) -> Account:
        """Who the commands run as."""
        return self.daemon.caller

    @property
    def runner(self) -> str:
        """``bwrap`` or ``landlock``."""
        return self.daemon.runner

    @property
    def under_bwrap(self) -> bool:
        """Whether there are namespaces around the commands."""
        return self.runner == "bwrap"

    @property
    def in_user_namespace(self) -> bool:
        """Whether uids other than the caller's own are not mapped."""
        return self.under_bwrap and not self.daemon.account.is_root

    def run(
        self, command: str, mode: str = WORKSPACE_WRITE, **options: Any
    ) -> RunResult:
        """Run a command in the session."""
        return self.client.run(command, mode=mode, **options)

    def text(self, command: str, mode: str = WORKSPACE_WRITE, **options: Any) -> str:
        """Return what a command prints; it must succeed."""
        result = self.run(command, mode, **options)
        assert result.exit_code == 0, result
        return result.stdout.text

    def python(self, program: str, mode: str = WORKSPACE_WRITE, **options: Any) -> Any:
        """Run a Python program in the session; return the JSON it prints."""
        result = self.run(
            f"{sys_python()} -I -", mode, stdin=program.encode(), **options
        )
        assert result.exit_code == 0, result
        return json.loads(result.stdout.text)

    def program(
        self,
        file: Path,
        *arguments: object,
        mode: str = WORKSPACE_WRITE,
        **options: Any,
    ) -> Any:
        """Run a Python file in the session; return the JSON it prints.

        The file arrives over stdin: it need not exist in the cell.
        """
        words = " ".join(shlex.quote(str(word)) for word in arguments)
        result = self.run(
            f"{sys_python()} -I - {words}", mode, stdin=file.read_bytes(), **options
        )
        return self.parse(result)

    @staticmethod
    def parse(result: RunResult) -> Any:
        """Return the JSON that a command printed; it must have succeeded."""
        assert result.exit_code == 0, result
        return json.loads(result.stdout.text)

    def open(self, cwd: Path | None = None, **options: Any) -> SyncClient:
        """Open another session of the caller's, on the workspace unless said."""
        return self.others.enter_context(self.another(cwd, **options))

    def another(
        self, cwd: Path | None = None, **options: Any
    ) -> contextlib.AbstractContextManager[SyncClient]:
        """The same for a block; its end closes the session and the connection."""
        options.setdefault("environ", self.environ)
        return _session(self.daemon, cwd or self.workspace, **options)

    def attach(self, session_id: str) -> contextlib.AbstractContextManager[SyncClient]:
        """Come back to a session with another connection, for another thread say."""
        return client(self.daemon, cwd=None, session=session_id, environ=self.environ)

    def as_caller(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program on the host as the caller, unconfined."""
        return as_user(self.caller, list(argv), cwd=self.folder, **options)

    def make(self, relative: str, content: str = "canary\n") -> Path:
        """Make a file of the caller's below `folder`."""
        path = self.folder / relative
        for parent in reversed(path.relative_to(self.folder).parents[:-1]):
            self.give(self.folder / parent)
        path.write_text(content)
        os.chown(path, self.caller.uid, self.caller.gid)
        return path

    def give(self, folder: Path) -> Path:
        """Make a folder of the caller's unless it is there; return it."""
        if not folder.exists():
            folder.mkdir()
            os.chown(folder, self.caller.uid, self.caller.gid)
        return folder

    def link(self, path: Path, target: str) -> Path:
        """Make a symbolic link of the caller's; return it."""
        path.symlink_to(target)
        os.lchown(path, self.caller.uid, self.caller.gid)
        return path

    def processes(self, mark: str) -> list[int]:
        """Return the host's pids of what the daemon started with *mark* in its argv."""
        return [p for p in self.daemon.enclosure.pids() if mark in describe(p)]


def sys_python() -> str:
    """Return an interpreter that every account and every cell can execute."""
    found = shutil.which("python3", path="/usr/bin:/bin")
    return found or os.path.realpath(getattr(sys, "_base_executable", sys.executable))


class StationPool:
    """Daemons by combination and settings, started when first needed."""

    def __init__(
        self, start: DaemonFactory, accounts: Callable[[str], Account], parent: Path
    ) -> None:
        self._start = start
        self._accounts = accounts
        self._parent = parent
        self._running: dict[str, RunningDaemon] = {}

    def daemon(
        self, combination: Combination, settings: Settings | None = None
    ) -> RunningDaemon:
        """Return a running daemon; tests must not stop it."""
        key = json.dumps([combination, settings], sort_keys=True)
        known = self._running.get(key)
        if known is None:
            who, runner = combination
            known = self._running[key] = self._start(
                account=self._accounts("user" if who == "user" else "root"),
                caller=self._accounts("root" if who == "root" else "user"),
                runner=runner,
                settings=settings,
            )
        return known

    @contextlib.contextmanager
    def open(
        self,
        combination: Combination,
        *,
        settings: Settings | None = None,
        environ: dict[str, str] | None = None,
        **options: Any,
    ) -> Generator[Station, None, None]:
        """Open a station on a shared daemon; *options* are the session's."""
        with station_on(
            self.daemon(combination, settings),
            self._parent,
            environ=environ,
            **options,
        ) as station:
            yield station


@contextlib.contextmanager
def station_on(
    daemon: RunningDaemon,
    parent: Path,
    *,
    environ: dict[str, str] | None = None,
    **options: Any,
) -> Generator[Station, None, None]:
    """Open a station on *daemon*, with its folder in *parent*."""
    folder = parent / f"station-{secrets.token_hex(4)}"
    environ = daemon.caller_env(environ)
    caller = daemon.caller
    try:
        for path in (folder, folder / "workspace", folder / "outside"):
            path.mkdir()
            os.chown(path, caller.uid, caller.gid)
        workspace = folder / "workspace"
        with contextlib.ExitStack() as others:
            own = others.enter_context(
                _session(daemon, workspace, environ=environ, **options)
            )
            yield Station(
                daemon, own, folder, workspace, folder / "outside", environ, others
            )
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def _session(
    daemon: RunningDaemon, cwd: Path, **options: Any
) -> Generator[SyncClient, None, None]:
    with client(daemon, cwd=cwd, **options) as opened:
        session_id = opened.session.session_id
        try:
            yield opened
        finally:
            with contextlib.suppress(UnknownSessionError):  # the test closed it
                opened.sessions.close(session_id)


@pytest.fixture(scope="session")
def station_pool(
    request: pytest.FixtureRequest,
    reachable_tmp: Path,
    install: Install,
    # Asked for here, not when first needed: so the user goes after its daemons.
    ordinary_user: Account,
) -> Iterator[StationPool]:
    """All daemons that stations share; they end with the test session."""
    from tests.conftest import daemon_factory  # noqa: PLC0415 - it loads this plugin

    def account(name: str) -> Account:
        return (
            request.getfixturevalue("root_account") if name == "root" else ordinary_user
        )

    with daemon_factory(reachable_tmp, install) as start:
        yield StationPool(start, account, reachable_tmp)


@pytest.fixture
def open_station(
    request: pytest.FixtureRequest, station_pool: StationPool
) -> Iterator[Callable[..., Station]]:
    """Open stations by hand: ``open_station(combination, settings=…)``."""
    with contextlib.ExitStack() as stack:

        def enter(combination: Combination, **options: Any) -> Station:
            skip_unless_possible(request, combination)
            return stack.enter_context(station_pool.open(combination, **options))

        yield enter


@pytest.fixture(params=ALL, ids="-".join)
def station(
    request: pytest.FixtureRequest, station_pool: StationPool
) -> Iterator[Station]:
    """A station on each of the six combinations; see `on` for fewer."""
    skip_unless_possible(request, request.param)
    with station_pool.open(request.param) as opened:
        yield opened


def skip_unless_possible(
    request: pytest.FixtureRequest, combination: Combination
) -> None:
    """Skip where this machine or account cannot have the combination."""
    if combination == USER_BWRAP:
        request.getfixturevalue("bwrap_for_users")
