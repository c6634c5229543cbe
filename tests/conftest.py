"""Fixtures all tests share; what stands behind them is in tests/support."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.support import accounts
from tests.support.daemons import RunningDaemon, Settings, start_daemon
from tests.support.leaks import KINDS, snapshot_at_rest, wait_until_settled
from tests.support.marks import remove_folders_of_dead_sessions, session_mark
from tests.support.stage import Install, checkout_or_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from tests.support.accounts import Account

pytest_plugins = [
    "tests.support.strict",
    "tests.support.stations",
    "tests.support.audit",
]

RUNNERS = ("bwrap", "landlock")


def pytest_configure() -> None:
    """Have children meet every signal at its default.

    nohup ignores SIGHUP, a shell's ``&`` SIGINT and SIGQUIT, and children inherit that.
    What is caught is as good as ignored here and at its default after exec.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


def pairs(*identities: str) -> list[tuple[str, str]]:
    """Return every identity with every runner."""
    return [(who, runner) for who in identities for runner in RUNNERS]


@pytest.fixture(scope="session")
def reachable_tmp() -> Iterator[Path]:
    """A folder for this session that every account can pass through.

    Not below /tmp: commands see a /tmp of their own, and a test that is about that
    says so. pytest's own tmp_path is closed to other users.
    """
    parent = next(path for path in (Path("/srv"), Path("/opt")) if path.is_dir())
    if not os.access(parent, os.W_OK):
        parent = Path.home()
    remove_folders_of_dead_sessions(parent, "bashd-tests")
    folder = parent / f"bashd-tests-{session_mark()}-{secrets.token_hex(4)}"
    folder.mkdir()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def install(reachable_tmp: Path) -> Install:
    """A bashd that every account can execute."""
    return checkout_or_stage(reachable_tmp)


@pytest.fixture(scope="session")
def ordinary_user() -> Iterator[Account]:
    """An ordinary user: one made for this session, or whoever runs the tests."""
    if os.geteuid() != 0:
        yield accounts.current_account()
        return
    accounts.remove_users_of_dead_sessions()
    user = accounts.make_user()
    try:
        yield user
    finally:
        accounts.remove_user(user)


@pytest.fixture(scope="session")
def second_user() -> Iterator[Account]:
    """Another ordinary user, for tests about one user against another."""
    if os.geteuid() != 0:
        pytest.skip("two users need root to make the second one")
    user = accounts.make_user()
    try:
        yield user
    finally:
        accounts.remove_user(user)


@pytest.fixture(scope="session")
def root_account() -> Account:
    """Root, for tests that need a daemon of root's."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    return accounts.current_account()


@pytest.fixture(scope="session")
def bwrap_for_users(ordinary_user: Account) -> None:
    """Skip where an ordinary user cannot make the namespaces bubblewrap needs.

    Such are containers, chroots, and Ubuntu's AppArmor without a profile for bwrap.
    """
    done = accounts.as_user(
        ordinary_user, ["bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"]
    )
    if done.returncode:
        pytest.skip(f"no user namespaces for ordinary users: {done.stderr.strip()}")


class DaemonFactory(Protocol):
    """Starts daemons that end with the test."""

    def __call__(
        self,
        *,
        account: Account,
        caller: Account | None = None,
        runner: str = "auto",
        settings: Settings | None = None,
        delegated: bool = False,
        wrap: Sequence[str] = (),
    ) -> RunningDaemon:
        """Start one; see `tests.support.daemons.start_daemon`."""
        ...


@pytest.fixture
def make_daemon(reachable_tmp: Path, install: Install) -> Iterator[DaemonFactory]:
    """Start any number of daemons; all are stopped, and checked, after the test."""
    with daemon_factory(reachable_tmp, install) as factory:
        yield factory


@contextlib.contextmanager
def daemon_factory(
    parent: Path, install: Install
) -> Generator[DaemonFactory, None, None]:
    """Start daemons in folders below *parent*; stop all of them at the end."""
    running: list[RunningDaemon] = []

    def start(
        *,
        account: Account,
        caller: Account | None = None,
        runner: str = "auto",
        settings: Settings | None = None,
        delegated: bool = False,
        wrap: Sequence[str] = (),
    ) -> RunningDaemon:
        daemon = start_daemon(
            parent / f"daemon-{secrets.token_hex(4)}",
            install,
            account=account,
            caller=caller,
            runner=runner,
            settings=settings,
            delegated=delegated,
            wrap=wrap,
        )
        running.append(daemon)
        return daemon

    with contextlib.ExitStack() as stack:
        # A stack, so that one daemon that stops badly does not keep the next one.
        stack.callback(lambda: [daemon.remove_folders() for daemon in running])
        try:
            yield start
        finally:
            for daemon in running:
                stack.callback(daemon.stop)


def _account(request: pytest.FixtureRequest, identity: str) -> Account:
    name = "root_account" if identity == "root" else "ordinary_user"
    return request.getfixturevalue(name)


@pytest.fixture(params=["root", "user"])
def identity(request: pytest.FixtureRequest) -> Account:
    """Root, then an ordinary user."""
    return _account(request, request.param)


@pytest.fixture(params=pairs("root", "user"), ids="-".join)
def daemon_matrix(
    request: pytest.FixtureRequest, make_daemon: DaemonFactory
) -> RunningDaemon:
    """A daemon of root's and of an ordinary user's, on each runner; four in all."""
    return _daemon(request, make_daemon)


@pytest.fixture(params=pairs("served"), ids="-".join)
def served_daemon(
    request: pytest.FixtureRequest, make_daemon: DaemonFactory
) -> RunningDaemon:
    """A daemon of root's that serves an ordinary user, on each runner."""
    return _daemon(request, make_daemon)


@pytest.fixture(params=pairs("root", "user", "served"), ids="-".join)
def every_daemon(
    request: pytest.FixtureRequest, make_daemon: DaemonFactory
) -> RunningDaemon:
    """`daemon_matrix` and `served_daemon`; six in all."""
    return _daemon(request, make_daemon)


def _daemon(
    request: pytest.FixtureRequest, make_daemon: DaemonFactory
) -> RunningDaemon:
    who, runner = request.param
    if (who, runner) == ("user", "bwrap"):
        request.getfixturevalue("bwrap_for_users")
    caller = _account(request, "root" if who == "root" else "user")
    account = _account(request, "root") if who == "served" else caller
    return make_daemon(account=account, caller=caller, runner=runner)


@pytest.fixture
def leaks() -> Callable[..., contextlib.AbstractContextManager[None]]:
    """``with leaks(daemon): …`` fails if the block leaves something in the daemon.

    Do the same work once before the block: warm cells, caches and the default session
    are kept on purpose and would count as new.
    """

    @contextlib.contextmanager
    def watch(
        daemon: RunningDaemon,
        *,
        kinds: tuple[str, ...] = KINDS,
        within_s: float = 10,
    ) -> Generator[None, None, None]:
        before = snapshot_at_rest(daemon)
        yield
        wait_until_settled(daemon, before, kinds=kinds, within_s=within_s)

    return watch
