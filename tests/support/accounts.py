"""Accounts that tests run as: root, the developer, and ordinary users made for a run.

An ordinary user is real: an entry in passwd, a home, a login shell. It goes when the
session ends, with its processes (ended by pid, found by uid) and its files. Should a
session be killed, its users stay behind; the next session finds them by the mark in
the comment field and removes those whose session is gone.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import select
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bashd.launcher.kernel import set_dumpable
from tests.support.marks import is_of_live_session, session_mark

if TYPE_CHECKING:
    from collections.abc import Generator

_PREFIX = "bashd-t-"
_SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run/user", "/run/lock")


@dataclass(frozen=True, slots=True)
class Account:
    """Who a process runs as."""

    name: str
    uid: int
    gid: int
    home: Path

    @property
    def is_root(self) -> bool:
        """Whether this is uid 0."""
        return self.uid == 0

    def environment(self) -> dict[str, str]:
        """Return the environment of a fresh login, with nothing of the caller's."""
        return {
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }


def current_account() -> Account:
    """Return the account the tests themselves run as."""
    entry = pwd.getpwuid(os.geteuid())
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))


def argv_as(account: Account, argv: list[str]) -> list[str]:
    """Return an argv that runs *argv* as *account*, with its own groups."""
    if account.uid == os.geteuid():
        return argv
    return [
        "setpriv",
        f"--reuid={account.uid}",
        f"--regid={account.gid}",
        "--init-groups",
        "--inh-caps=-all",
        "--",
        *argv,
    ]


def as_user(
    account: Account,
    argv: list[str],
    *,
    env: dict[str, str] | None = None,
    cwd: str | Path | None = None,
    stdin: str | None = None,
    timeout_s: float = 30,
) -> subprocess.CompletedProcess[str]:
    """Run *argv* as *account* and return what it did; never raises for its status.

    Args:
        account: Who runs it.
        argv: Program and arguments; looked up in the account's own PATH.
        env: Entries added to (or replacing) those of a fresh login.
        cwd: Working directory; the account's home by default.
        stdin: Text for its stdin; ``/dev/null`` by default.
        timeout_s: Seconds until it is killed and TimeoutExpired is raised.
    """
    return subprocess.run(
        argv_as(account, argv),
        env=account.environment() | (env or {}),
        cwd=cwd or account.home,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@contextlib.contextmanager
def speaking_as(account: Account) -> Generator[None]:
    """Have what this process sends come from *account*.

    The kernel names the effective ids of who connects and the real ones of who sends,
    and the daemon looks at both.
    """
    uid, gid = os.geteuid(), os.getegid()
    os.setresgid(account.gid, account.gid, gid)
    os.setresuid(account.uid, account.uid, uid)
    try:
        yield
    finally:
        os.setresuid(uid, uid, uid)
        os.setresgid(gid, gid, gid)
        # The change has closed /proc/self to others of the same user.
        set_dumpable(True)


def make_user() -> Account:
    """Make an ordinary user. Needs root; see `remove_user`."""
    name = _PREFIX + secrets.token_hex(4)
    comment = f"bashd test user {session_mark()}"
    subprocess.run(
        ["useradd", "--create-home", "--shell=/bin/bash", f"--comment={comment}", name],
        check=True,
        capture_output=True,
        timeout=30,
    )
    entry = pwd.getpwnam(name)
    return Account(name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))


def remove_user(account: Account) -> None:
    """Remove a user of `make_user`, its processes and its files."""
    if not account.name.startswith(_PREFIX):
        msg = f"{account.name} was not made by these tests"
        raise ValueError(msg)
    end_processes_of(account.uid)
    subprocess.run(
        ["userdel", "--remove", account.name],
        check=True,
        capture_output=True,
        timeout=30,
    )
    for folder in _SHARED_FOLDERS:
        _remove_entries_of(account.uid, Path(folder))


def remove_users_of_dead_sessions() -> None:
    """Remove what killed test sessions left behind."""
    for entry in pwd.getpwall():
        mark = entry.pw_gecos.rstrip(",").rpartition(" ")[2]
        if not entry.pw_name.startswith(_PREFIX) or is_of_live_session(mark):
            continue
        home = Path(entry.pw_dir)
        with contextlib.suppress(subprocess.CalledProcessError):
            # Another session may be removing the same user at this moment.
            remove_user(Account(entry.pw_name, entry.pw_uid, entry.pw_gid, home))


def processes_of(uid: int) -> list[int]:
    """Return the pids whose real, effective or saved uid is *uid*; zombies left out."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            status = (folder / "status").read_text()
            # The owner of /proc/PID is root for a process that is not dumpable.
            uids = re.search(r"^Uid:\s+(.*)$", status, re.MULTILINE)
            zombie = re.search(r"^State:\s+Z", status, re.MULTILINE)
            if uids and not zombie and str(uid) in uids[1].split():
                found.append(int(folder.name))
    return found


def end_processes_of(uid: int, *, within_s: float = 10) -> None:
    """Kill every process of *uid* and wait until they are gone."""
    deadline = time.monotonic() + within_s
    while pids := processes_of(uid):
        if time.monotonic() > deadline:
            msg = f"processes of uid {uid} survive SIGKILL: {pids}"
            raise TimeoutError(msg)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                _kill_and_wait(pid, uid)


def _kill_and_wait(pid: int, uid: int) -> None:
    fd = os.pidfd_open(pid)
    try:
        # The pidfd pins the process; only now is "still that uid's" a safe check.
        if pid in processes_of(uid):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            select.select([fd], [], [], 1)
    finally:
        os.close(fd)


def _remove_entries_of(uid: int, folder: Path) -> None:
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if entry.lstat().st_uid != uid:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
