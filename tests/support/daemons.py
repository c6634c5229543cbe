"""Real daemons for tests: started, watched, driven through the command line, stopped.

A daemon under test is `python -m bashd.daemon` in an `Enclosure`, with folders of its
own, as root or as an ordinary user. `stop` is itself a test: whatever the daemon
leaves behind after a clean stop is a failure of the test that used it.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.accounts import Account, argv_as
from tests.support.enclosure import Enclosure
from tests.support.traces import mounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.stage import Install

_START_S = 30
"""Seconds a daemon may take until it accepts; the runner's probes are part of it."""
_STOP_S = 30
"""Seconds for a clean stop: the grace of every running task and a margin."""

_CONFIG = "bashd.toml"

Settings = dict[str, dict[str, object]]
"""Sections and keys of bashd.toml."""


class DaemonFailedError(Exception):
    """The daemon did not start, or did not stop as it should; carries its log."""


@dataclass(slots=True)
class RunningDaemon:
    """One daemon and how its caller talks to it."""

    account: Account
    """Who the daemon runs as."""
    caller: Account
    """Who `cli` and `run` speak as."""
    install: Install
    folder: Path
    """Holds socket, config, state and log of this daemon and nothing else."""
    enclosure: Enclosure
    process: subprocess.Popen[bytes]
    runner: str
    mounts_before: frozenset[str] = field(repr=False)
    wrap: Sequence[str] = ()
    """What its command line begins with."""
    workspaces: list[Path] = field(default_factory=list[Path])

    @property
    def pid(self) -> int:
        """Pid of the daemon."""
        return self.process.pid

    @property
    def socket(self) -> Path:
        """The socket it listens on."""
        return self.folder / "run" / "bashd.sock"

    @property
    def state_dir(self) -> Path:
        """Its ``[daemon] state_dir``."""
        return self.folder / "state"

    @property
    def log(self) -> str:
        """What it has written to stderr so far."""
        return (self.folder / "daemon.log").read_text(errors="replace")

    def make_workspace(self, name: str = "workspace") -> Path:
        """Make a folder that belongs to the caller; it goes when the daemon does."""
        # An ordinary user works at home; root in the test's own folder, because /root
        # is where real keys lie.
        own = f"{self.folder.name}-{name}"
        path = self.folder / name if self.caller.is_root else self.caller.home / own
        path.mkdir()
        os.chown(path, self.caller.uid, self.caller.gid)
        self.workspaces.append(path)
        return path

    def remove_folders(self) -> None:
        """Remove what was made for this daemon: workspaces, state, config and log."""
        # Only root may look into a folder of mode 0000, and the state has one.
        if self.state_dir.exists():
            subprocess.run(["chmod", "-R", "u+rwX", str(self.state_dir)], check=True)
        for path in (*self.workspaces, self.folder):
            shutil.rmtree(path, ignore_errors=not path.exists())

    def argv_as_caller(self, argv: list[str]) -> list[str]:
        """Return an argv that runs *argv* as the caller."""
        return argv_as(self.caller, argv)

    def caller_argv(self, *arguments: str) -> list[str]:
        """Return the argv of ``bashd ARGUMENTS…`` as the caller."""
        # -P: as the installed script, which does not look for modules in the cwd.
        start = [self.install.python, "-P", "-m", "bashd"]
        return self.argv_as_caller([*start, *arguments])

    def caller_env(self, env: dict[str, str] | None = None) -> dict[str, str]:
        """Return a login's environment that leads to this daemon."""
        own = {"BASHD_SOCKET": str(self.socket)}
        return self.caller.environment() | own | (env or {})

    def cli(
        self,
        *arguments: str,
        stdin: str | None = None,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 30,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``bashd ARGUMENTS…`` as the caller; its status is not judged."""
        return subprocess.run(
            self.caller_argv(*arguments),
            env=self.caller_env(env),
            cwd=cwd or self.caller.home,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def run(
        self,
        command: str,
        *,
        cwd: Path,
        mode: str | None = None,
        options: Sequence[str] = (),
        env: dict[str, str] | None = None,
        timeout_s: float = 30,
    ) -> dict[str, Any]:
        """Run one command with ``--json`` and return the object it prints.

        Raises:
            DaemonFailedError: What was printed is not one object.
        """
        chosen = [] if mode is None else ["--mode", mode]
        done = self.cli(
            *("run", "--json", "--cwd", str(cwd), *chosen, *options, "--", command),
            env=env,
            cwd=cwd,
            timeout_s=timeout_s,
        )
        try:
            return json.loads(done.stdout)
        except ValueError:
            msg = f"no JSON from `bashd run`: {done}\n--- daemon.log\n{self.log}"
            raise DaemonFailedError(msg) from None

    def stop(self) -> None:
        """Stop it with SIGTERM and check that nothing of it is left.

        Raises:
            DaemonFailedError: It did not end, ended badly, or left something.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            status = None
        left = self.enclosure.close()
        self.process.wait()
        problems = [f"process {line}" for line in left]
        if status != 0:
            problems.append(f"exit status {status} after SIGTERM")
        if self.socket.exists():
            problems.append(f"socket {self.socket}")
        problems += [f"mount {line}" for line in mounts() - self.mounts_before]
        if problems:
            listed = "\n".join(problems)
            msg = f"the daemon left something behind:\n{listed}\n--- log\n{self.log}"
            raise DaemonFailedError(msg)

    def kill(self) -> None:
        """End the daemon with SIGKILL; what it had started stays in the enclosure."""
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        """Start a successor in the place of a daemon that was killed.

        Raises:
            DaemonFailedError: It is not ready.
        """
        self.process, said = _launch(
            self.folder, self.install, self.account, self.enclosure, self.wrap
        )
        if said != "ready\n":
            msg = f"the successor said {said!r}\n--- log\n{self.log}"
            raise DaemonFailedError(msg)


def start_daemon(
    folder: Path,
    install: Install,
    *,
    account: Account,
    caller: Account | None = None,
    runner: str = "auto",
    settings: Settings | None = None,
    delegated: bool = False,
    wrap: Sequence[str] = (),
) -> RunningDaemon:
    """Start a daemon and return once it accepts.

    Args:
        folder: New folder, reachable for *caller*; filled with what the daemon needs.
        install: Which bashd.
        account: Who the daemon runs as.
        caller: Who will talk to it; *account* by default.
        runner: ``auto``, ``bwrap`` or ``landlock``.
        settings: Sections and keys of bashd.toml that win over the test's own.
        delegated: Give *account* the cgroup the daemon is in, as a service manager
            does for a user's service.
        wrap: Command line before the daemon's own, run by whoever runs the tests.

    Raises:
        DaemonFailedError: It ended, or said something else than that it is ready.
    """
    caller = caller or account
    before = mounts()
    _make_folders(folder, account)
    sections = _sections(folder, account, caller, runner)
    _write_config(folder, sections, settings or {})
    enclosure = Enclosure()
    if delegated:
        enclosure.delegate_to(account.uid, account.gid)
    process, said = _launch(folder, install, account, enclosure, wrap)
    daemon = RunningDaemon(
        account, caller, install, folder, enclosure, process, runner, before, wrap
    )
    if said != "ready\n":
        enclosure.close()
        process.wait()
        msg = f"the daemon is not ready, it said {said!r}\n--- log\n{daemon.log}"
        daemon.remove_folders()
        raise DaemonFailedError(msg)
    return daemon


def _launch(
    folder: Path,
    install: Install,
    account: Account,
    enclosure: Enclosure,
    wrap: Sequence[str],
) -> tuple[subprocess.Popen[bytes], str]:
    """Start the daemon of *folder*; return it and what it said when it was ready."""
    read_fd, write_fd = os.pipe()
    argv = [
        *(install.python, "-P", "-m", "bashd.daemon"),
        *("--socket", str(folder / "run" / "bashd.sock")),
        *("--config", str(folder / _CONFIG), "--ready-fd", str(write_fd)),
    ]
    process = enclosure.start(
        [*wrap, *argv_as(account, argv)],
        env=account.environment(),
        cwd=str(folder),
        log=folder / "daemon.log",
        pass_fds=[write_fd],
    )
    os.close(write_fd)
    return process, _read_until_closed(read_fd, _START_S)


def _make_folders(folder: Path, account: Account) -> None:
    # 0711: callers pass through to the socket, and see nothing else.
    folder.mkdir(mode=0o711)
    folder.chmod(0o711)
    os.chown(folder, account.uid, account.gid)
    for name in ("state", "run"):
        (folder / name).mkdir(mode=0o700)
        os.chown(folder / name, account.uid, account.gid)


def _sections(folder: Path, account: Account, caller: Account, runner: str) -> Settings:
    sections: Settings = {
        "sandbox": {"runner": runner},
        "daemon": {"state_dir": str(folder / "state")},
    }
    if account.is_root and not caller.is_root:
        # A user's own group: it has exactly one member.
        sections["daemon"]["group"] = caller.name
    return sections


def _write_config(folder: Path, sections: Settings, settings: Settings) -> None:
    for name, keys in settings.items():
        sections.setdefault(name, {}).update(keys)
    config = folder / _CONFIG
    config.write_text(toml(sections))
    config.chmod(0o644)


def toml(sections: Settings) -> str:
    """Write *sections* as TOML; values are those JSON and TOML spell alike."""
    lines: list[str] = []
    for name, keys in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def _read_until_closed(fd: int, within_s: float) -> str:
    deadline = time.monotonic() + within_s
    said = b""
    try:
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                return said.decode() + f"(nothing more within {within_s} s)"
            data = os.read(fd, 4096)
            if not data:
                return said.decode()
            said += data
    finally:
        os.close(fd)
