"""A throw-away machine with a systemd of its own, for tests of the units.

The machine's root is an overlay on a root file system that is only read: this
machine's own by default, so that nothing has to be installed, or one that
`debootstrap` made. systemd-nspawn boots it in namespaces of its own, without network
unless that is asked for; what it writes is in a tmpfs that goes with it. Nothing of
this machine's services is started there.

How, and why like this: a cgroup2 subtree is all that systemd gets to see, because the
first hierarchy of this machine may be of the old kind; a shell in a new mount, cgroup
and pid namespace makes the overlay, so that nothing is left of it when the shell is
gone, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Self

from tests.support.marks import remove_cgroups_of_dead_sessions, session_mark

_BOOT_S = 60
_STOP_S = 30
_TOOLS = ("systemd-nspawn", "nsenter", "unshare")
_PREFIX = "bashd-machine"
_FIRST_UID = 20_000
_UIDS = 30_000
"""Users are numbered from somewhere in between; other machines start elsewhere."""

# $1 work folder, $2 root file system, $3 first uid of its users, $4… what to run there
_BUILD = r"""
set -eu
work=$1 lower=$2 first_uid=$3
shift 3
mount -t tmpfs -o mode=755 bashd-machine "$work"
mkdir "$work/upper" "$work/scratch" "$work/root"
mount -t overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/scratch" \
    bashd-machine "$work/root"
cd "$work/root"
rm -f etc/machine-id etc/systemd/system/*.wants/* etc/hostname
touch etc/machine-id
# /run and /tmp are new anyway; no logs, mounts, timers and daemons of this machine's.
rm -rf var/log/journal var/lib/bashd etc/bashd
: >etc/fstab
# There is no user namespace: a user outside with the same number would be able to kill
# what runs in here, and tests of others do kill all that they may.
sed -i "s/^UID_MIN.*/UID_MIN $first_uid/; s/^GID_MIN.*/GID_MIN $first_uid/" etc/login.defs
for unit in systemd-timesyncd apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer \
    fstrim.timer man-db.timer dpkg-db-backup.timer systemd-networkd systemd-resolved \
    console-getty getty.target e2scrub_reap ssh; do
    ln -sf /dev/null "etc/systemd/system/$unit"
    case $unit in *.*) ;; *) ln -sf /dev/null "etc/systemd/system/$unit.service" ;; esac
done
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
exec "$@"
"""


class MachineError(Exception):
    """It did not boot; carries what the console said."""


def why_not() -> str | None:
    """Return why no machine can be booted here; None if one can."""
    if os.geteuid() != 0:
        return "booting a systemd needs root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"booting a systemd needs {', '.join(missing)}"
    if _cgroup2_root() is None:
        return "booting a systemd needs a writable cgroup2 hierarchy"
    return None


class Machine:
    """One booted machine; close it, or use it in a ``with``.

    Args:
        root: Root file system below the overlay; it is only read.
        network: Whether it has this machine's network; it has none otherwise.
    """

    def __init__(self, root: Path = Path("/"), *, network: bool = False) -> None:
        self._lower = root
        self._network = network
        self._cgroup = _make_cgroup()
        self._work = Path("/run") / self._cgroup.name
        self._work.mkdir()
        self._console = self._work.with_suffix(".console")
        self._leader = 0
        self._process = self._start()

    def __enter__(self) -> Self:
        """Wait until it is up."""
        try:
            self._leader = self._find_leader()
            self._wait_until_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()

    @property
    def console(self) -> str:
        """What was written to its console."""
        return self._console.read_text(errors="replace")

    def run(
        self,
        *argv: str,
        stdin: str | None = None,
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run *argv* in the machine as root; its status is not judged."""
        return subprocess.run(
            self.argv(*argv),
            env=_ENVIRONMENT,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def argv(self, *argv: str) -> list[str]:
        """Return an argv that runs *argv* in the machine as root."""
        enter = ["nsenter", f"--target={self._leader}", *_NAMESPACES]
        # In a cgroup of its own: this test's are not those of the machine.
        return [*enter, "--root", "--wd", "--", *argv]

    def check(self, *argv: str, timeout_s: float = 60) -> str:
        """Run *argv* in the machine and return its stdout.

        Raises:
            AssertionError: It failed; the message has its output.
        """
        done = self.run(*argv, timeout_s=timeout_s)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def shell(self, script: str, timeout_s: float = 60) -> str:
        """Run a script of bash; see `check`."""
        return self.check("bash", "-euc", script, timeout_s=timeout_s)

    def show(self, unit: str, name: str) -> str:
        """Return one property of a unit."""
        return self.check("systemctl", "show", "--value", "-p", name, unit)

    def wait_for(self, script: str, *, within_s: float = 20) -> str:
        """Run *script* until it succeeds, and return its stdout.

        Raises:
            AssertionError: It does not in time; the message has its last output.
        """
        deadline = time.monotonic() + within_s
        while (done := self.run("bash", "-euc", script)).returncode:
            assert time.monotonic() < deadline, f"{script}: {done.stdout}{done.stderr}"
            time.sleep(0.05)
        return done.stdout.strip()

    def close(self) -> None:
        """End it and remove what it was made of."""
        if self._leader:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.run("systemctl", "--force", "poweroff", timeout_s=_STOP_S)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            # unshare forwards nothing, but pid 1 of its namespace takes all along.
            for pid in _children(self._process.pid):
                os.kill(pid, signal.SIGKILL)
            self._process.wait(_STOP_S)
        _remove_cgroup(self._cgroup)
        self._work.rmdir()
        self._console.unlink()

    def _start(self) -> subprocess.Popen[bytes]:
        nspawn = [
            *("systemd-nspawn", f"--directory={self._work}/root", "--boot", "--quiet"),
            *("--register=no", "--keep-unit", "--link-journal=no", "--console=pipe"),
            *([] if self._network else ["--private-network"]),
            *("--capability=all", "systemd.unit=multi-user.target"),
        ]
        first_uid = str(_FIRST_UID + secrets.randbelow(_UIDS))
        places = (str(self._work), str(self._lower))
        inside = ["bash", "-c", _BUILD, "build", *places, first_uid]
        unshare = "unshare --mount --cgroup --pid --fork --mount-proc --"
        move = f"echo $$ >{shlex.quote(str(self._cgroup))}/cgroup.procs"
        with self._console.open("wb") as console:
            return subprocess.Popen(
                ["sh", "-c", f'{move} && exec {unshare} "$@"', "sh", *inside, *nspawn],
                env=_ENVIRONMENT | _NSPAWN,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    def _find_leader(self) -> int:
        """Return the pid of its systemd: what nspawn's child turns into."""
        deadline = time.monotonic() + _BOOT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            for pid in _descendants(self._process.pid):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                        return pid
            time.sleep(0.05)
        raise MachineError(self.console)

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + _BOOT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            done = self.run("systemctl", "is-system-running", timeout_s=_BOOT_S)
            if done.stdout.strip() in ("running", "degraded"):
                return
            time.sleep(0.1)
        raise MachineError(self.console)


_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/root",
    "SYSTEMD_COLORS": "0",
    "SYSTEMD_PAGER": "",
}
# The filter of nspawn knows no Landlock in older releases; the machine is no wall here.
_NSPAWN = {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "SYSTEMD_SECCOMP": "0"}
_NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")


def _cgroup2_root() -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(place, os.W_OK):
            return Path(place)
    return None


def _make_cgroup() -> Path:
    parent = _cgroup2_root()
    assert parent is not None
    remove_cgroups_of_dead_sessions(parent, _PREFIX)
    folder = parent / f"{_PREFIX}-{session_mark()}-{secrets.token_hex(4)}"
    folder.mkdir()
    return folder


def _remove_cgroup(folder: Path) -> None:
    (folder / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + _STOP_S
    while "populated 1" in (folder / "cgroup.events").read_text():
        assert time.monotonic() < deadline, f"{folder} is not empty"
        time.sleep(0.02)
    for path, _, _ in os.walk(folder, topdown=False):
        Path(path).rmdir()


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(word) for word in text.split()]
    return []


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for child in list(found):
        found += _descendants(child)
    return found
