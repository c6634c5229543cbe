"""Accounts, daemons, workspaces and drivers: the scene of the measurements."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.drivers import Driver
from tests.benchmarks.peers import Ground
from tests.support.accounts import (
    Account,
    current_account,
    make_user,
    remove_user,
    remove_users_of_dead_sessions,
)
from tests.support.daemons import DaemonFailedError, RunningDaemon, start_daemon
from tests.support.stage import Install, checkout_or_stage

REALTIME = ("chrt", "--rr", "10")
_SETTINGS: dict[str, dict[str, object]] = {
    # What caps the output must not cut what is measured.
    "executor": {"max_spill_bytes": 64 << 30},
    "limits": {"session_output_bytes": 64 << 30, "output_bytes": 128 << 30},
}


@dataclass(slots=True)
class Scene:
    """One account with its daemons, its workspace and who calls for it."""

    name: str
    """``root`` or ``user``."""
    account: Account
    install: Install
    folder: Path
    """Readable for the account."""
    stack: contextlib.ExitStack
    prefix: Sequence[str]
    daemon: RunningDaemon
    ground: Ground
    _drivers: dict[str, Driver] = field(default_factory=dict[str, Driver])
    _daemons: dict[str, RunningDaemon] = field(default_factory=dict[str, RunningDaemon])

    @property
    def driver(self) -> Driver:
        """Makes calls as the account, from bashd's own interpreter."""
        return self.driver_with("")

    def driver_with(self, python: str, number: int = 0) -> Driver:
        """Return the driver of an interpreter; more than one for many callers."""
        key = f"{python}-{number}"
        if key not in self._drivers:
            driver = Driver(
                self.folder / "driver.py",
                python or self.install.python,
                self.account,
                self.folder,
                self.prefix,
            )
            self.stack.callback(driver.close)
            self._drivers[key] = driver
        return self._drivers[key]

    def daemon_on(self, runner: str) -> RunningDaemon:
        """Return the account's daemon on a runner, started when first needed."""
        if runner not in self._daemons:
            self._daemons[runner] = self.stack.enter_context(
                _daemon(self.folder, self.install, self.account, runner, self.prefix)
            )
        return self._daemons[runner]

    def options(self, mode: str, runner: str = "", **more: Any) -> dict[str, Any]:
        """Return the arguments of `connect_sync` for a session in the workspace."""
        daemon = self.daemon_on(runner) if runner else self.daemon
        return {
            "socket": str(daemon.socket),
            "cwd": str(self.ground.workspace),
            "mode": mode,
            "environ": self.account.environment(),
            **more,
        }

    @contextlib.contextmanager
    def opened(self, mode: str, **more: Any) -> Generator[str, None, None]:
        """Open a session in the driver; gives the key it is held under."""
        key = secrets.token_hex(4)
        self.driver.ask("open", key=key, options=self.options(mode, **more))
        try:
            yield key
        finally:
            self.driver.ask("close", key=key)

    def sized(self, name: str) -> Path:
        """Make a folder of the account's that goes at the end."""
        path = self.ground.workspace / name
        path.mkdir()
        os.chown(path, self.account.uid, self.account.gid)
        return path


@contextlib.contextmanager
def scenes(names: Sequence[str], *, realtime: bool) -> Generator[list[Scene]]:
    """Set the scene for each account; everything goes at the end."""
    prefix = REALTIME if realtime else ()
    with contextlib.ExitStack() as stack:
        # Not /tmp, which is often memory: output is compared on a disk.
        place = tempfile.mkdtemp(prefix="bashd-bench-", dir="/var/tmp")
        stack.callback(shutil.rmtree, place)
        folder = Path(place)
        folder.chmod(0o755)
        install = checkout_or_stage(folder)
        shutil.copy(Path(__file__).with_name("driver.py"), folder)
        (folder / "driver.py").chmod(0o644)
        yield [
            _scene(stack, name, _account(stack, name), install, folder, prefix)
            for name in names
        ]


def _account(stack: contextlib.ExitStack, name: str) -> Account:
    current = current_account()
    if (name == "root") == current.is_root:
        return current
    if not current.is_root:
        raise PermissionError("only root can measure as root")
    remove_users_of_dead_sessions()
    user = make_user()
    stack.callback(remove_user, user)
    return user


def _scene(
    stack: contextlib.ExitStack,
    name: str,
    account: Account,
    install: Install,
    parent: Path,
    prefix: Sequence[str],
) -> Scene:
    folder = parent / name
    folder.mkdir()
    os.chown(folder, account.uid, account.gid)
    shutil.copy(parent / "driver.py", folder)
    daemon = stack.enter_context(_daemon(parent, install, account, "bwrap", prefix))
    ground = Ground(account, daemon.make_workspace(), folder)
    return Scene(name, account, install, folder, stack, prefix, daemon, ground)


@contextlib.contextmanager
def _daemon(
    parent: Path,
    install: Install,
    account: Account,
    runner: str,
    prefix: Sequence[str],
) -> Generator[RunningDaemon, None, None]:
    daemon = start_daemon(
        parent / f"daemon-{secrets.token_hex(4)}",
        install,
        account=account,
        runner=runner,
        settings=_SETTINGS,
        wrap=prefix,
    )
    try:
        yield daemon
    finally:
        try:
            daemon.stop()
        except DaemonFailedError as error:
            # What else happens on the machine can look like it, a mount say; and hours
            # of figures are not thrown away for it.
            print(f"bench: {error}", file=sys.stderr)
        daemon.remove_folders()


def script(scene: Scene) -> list[str]:
    """Return the argv of the installed ``bashd``."""
    beside = Path(scene.install.python).with_name("bashd")
    if beside.exists():
        return [str(beside)]
    # A staged copy has no scripts; this is what an installer writes.
    path = scene.folder / "bashd"
    path.write_text(
        f"#!{scene.install.python}\nimport sys\nfrom bashd.cli.main import main\n"
        "if __name__ == '__main__':\n    sys.exit(main())\n"
    )
    path.chmod(0o755)
    return [str(path)]


def may_realtime() -> bool:
    """Whether processes may be started with the priority of `REALTIME`."""
    done = subprocess.run(
        [*REALTIME, sys.executable, "-c", ""], capture_output=True, check=False
    )
    return done.returncode == 0
