"""Looks at the walls: Landlock, user namespaces, bubblewrap, AppArmor, seccomp.

Versions prove nothing, so each wall is tried: a child puts it up and a write that it
must stop has to fail, while a read that it must allow has to work. Every try is
bounded in time, and one that does not answer is reported as unknown.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bashd.cli.doctor_findings import Finding, State, landlock_words

_TRY_S: Final = 5.0
"""Seconds for one try: the daemon's own default for its probes."""
_SAFE_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""Where the daemon looks; the caller's PATH does not decide what confines."""
_BWRAP_OPTIONS: Final = (
    "--args", "--as-pid-1", "--cap-add", "--cap-drop", "--perms", "--remount-ro",
    "--unshare-ipc", "--unshare-pid", "--unshare-user", "--unshare-uts",
)  # fmt: skip
"""What a cell is made with."""
_OLDEST_GOOD_LANDLOCK: Final = 6
"""From ABI 6 on, signals and abstract sockets stay inside."""

_LANDLOCK_TRY: Final = """
import landlock, sys
access = landlock.FSAccess
rules = landlock.Ruleset()
rules.allow("/", rules=access.READ_FILE | access.READ_DIR | access.EXECUTE)
rules.apply()
open(sys.argv[1] + "/readable").close()
try:
    open(sys.argv[1] + "/written", "w").close()
except PermissionError:
    print("enforced")
"""
_SECCOMP_TRY: Final = """
import errno, os, pyseccomp
rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
rules.add_rule(pyseccomp.ERRNO(errno.ETXTBSY), "chdir")
rules.load()
try:
    os.chdir("/")
except OSError as error:
    print("enforced" if error.errno == errno.ETXTBSY else error)
"""
_BWRAP_TRY: Final = (
    'cat "$0/readable" && ! touch "$0/written" 2>/dev/null && echo enforced'
)
_APPARMOR_FIX: Final = (
    "let bubblewrap make user namespaces: put `abi <abi/4.0>, include "
    "<tunables/global> profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }` "
    "into /etc/apparmor.d/bwrap and run `apparmor_parser -r /etc/apparmor.d/bwrap`; "
    "or install bashd as a system service, which needs no user namespace"
)


@dataclass(frozen=True, slots=True)
class Try:
    """How a child that put up a wall fared."""

    enforced: bool
    said: str
    """The last line it wrote, or what happened to it."""
    timed_out: bool = False


def look_at_walls(folder: str, bwrap_path: str | None = None) -> list[Finding]:
    """Try every wall.

    Args:
        folder: Empty folder to try writes in; the caller removes it.
        bwrap_path: ``[sandbox] bwrap_path``; None to look in the usual places.
    """
    (Path(folder) / "readable").write_text("")
    return [
        _landlock(folder),
        _seccomp(),
        _user_namespaces(),
        _apparmor(),
        _bubblewrap(folder, bwrap_path),
    ]


def _landlock(folder: str) -> Finding:
    from bashd.launcher.kernel import landlock_abi  # noqa: PLC0415 - loads ctypes

    abi = landlock_abi()
    if abi == 0:
        return Finding("landlock", State.MISSING, *_why_no_landlock())
    tried = _try_python(_LANDLOCK_TRY, folder)
    if tried.timed_out:
        return Finding("landlock", State.UNKNOWN, f"ABI {abi}, but {tried.said}")
    if not tried.enforced:
        advice = "reinstall bashd: its package `landlock` does not work here"
        detail = f"ABI {abi}, but a try failed: {tried.said}"
        return Finding("landlock", State.MISSING, detail, advice)
    if abi < _OLDEST_GOOD_LANDLOCK:
        advice = "a kernel of 6.12 or newer keeps signals and abstract sockets inside"
        return Finding("landlock", State.LIMITED, landlock_words(abi), advice)
    return Finding("landlock", State.OK, landlock_words(abi))


def _why_no_landlock() -> tuple[str, str]:
    modules = _read("/sys/kernel/security/lsm")
    if modules is None:
        return (
            "this kernel offers none (it may be off)",
            "use a kernel of 5.13 or newer with CONFIG_SECURITY_LANDLOCK",
        )
    if "landlock" in modules.split(","):
        return (
            "listed by the kernel, but refused to this process",
            "a container's seccomp filter may be in the way: allow landlock_*",
        )
    return (
        f"not among this kernel's security modules ({modules})",
        f"start the kernel with lsm=landlock,{modules}",
    )


def _seccomp() -> Finding:
    tried = _try_python(_SECCOMP_TRY)
    if tried.timed_out:
        return Finding("seccomp", State.UNKNOWN, tried.said)
    if not tried.enforced:
        advice = "install libseccomp (apt: libseccomp2) and reinstall bashd"
        return Finding("seccomp", State.MISSING, tried.said, advice)
    return Finding("seccomp", State.OK, "a filter enforces")


def _user_namespaces() -> Finding:
    name = "user namespaces"
    unshare = shutil.which("unshare", path=_SAFE_PATH)
    if unshare is None:
        return Finding(name, State.UNKNOWN, "no unshare(1) here to try with")
    tried = _try([unshare, "--user", "--map-root-user", "echo", "enforced"])
    if tried.timed_out:
        return Finding(name, State.UNKNOWN, tried.said)
    if tried.enforced:
        note = "; a daemon of root's needs none" if os.geteuid() == 0 else ""
        return Finding(name, State.OK, f"one can be made{note}")
    if os.geteuid() == 0:
        return Finding(name, State.OK, "refused, but a daemon of root's needs none")
    return Finding(name, State.MISSING, tried.said, _why_no_namespace())


def _why_no_namespace() -> str:
    if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return _APPARMOR_FIX
    if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "as root: sysctl kernel.unprivileged_userns_clone=1"
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        return "as root: sysctl user.max_user_namespaces=10000"
    return (
        "a container's seccomp filter or security module refuses them: loosen it, or "
        "run bashd as root's service"
    )


def _apparmor() -> Finding:
    restricted = _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if restricted is None:
        return Finding("apparmor", State.OK, "does not restrict user namespaces")
    if restricted == "0" or os.geteuid() == 0:
        detail = "its restriction of user namespaces does not apply"
        return Finding("apparmor", State.OK, detail)
    # The namespace can be made but has no capabilities: only the try tells whether
    # a profile lets bubblewrap through.
    detail = "unprivileged user namespaces are restricted (Ubuntu 23.10 and newer)"
    return Finding("apparmor", State.LIMITED, detail)


def _bubblewrap(folder: str, bwrap_path: str | None) -> Finding:
    name = "bubblewrap"
    bwrap = bwrap_path or shutil.which("bwrap", path=_SAFE_PATH)
    if bwrap is None or not os.access(bwrap, os.X_OK):
        where = bwrap_path or _SAFE_PATH
        advice = "install bubblewrap (apt: bubblewrap)"
        return Finding(name, State.MISSING, f"no bwrap in {where}", advice)
    if lacking := _lacking_options(bwrap):
        advice = "install bubblewrap 0.5 or newer"
        return Finding(name, State.MISSING, f"{bwrap} lacks {lacking}", advice)
    tried = _try([*_bwrap_argv(bwrap), "sh", "-c", _BWRAP_TRY, folder])
    if tried.timed_out:
        return Finding(name, State.UNKNOWN, f"{bwrap} {tried.said}")
    if not tried.enforced:
        advice = "" if os.geteuid() == 0 else _why_no_namespace()
        detail = f"{bwrap} cannot build a cell: {tried.said}"
        return Finding(name, State.MISSING, detail, advice)
    return Finding(name, State.OK, f"{bwrap} ({_version(bwrap)}) enforces")


def _bwrap_argv(bwrap: str) -> list[str]:
    # As the daemon does it: root drops every capability and takes no user namespace.
    who = [] if os.geteuid() == 0 else ["--unshare-user"]
    return [
        *(bwrap, *who, "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
        *("--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev"),
        *("--proc", "/proc", "--"),
    ]


def _lacking_options(bwrap: str) -> str:
    try:
        done = subprocess.run(
            [bwrap, "--help"],
            capture_output=True,
            text=True,
            timeout=_TRY_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"--help ({error})"
    known = set(re.findall(r"--[a-z0-9-]+", done.stdout + done.stderr))
    return ", ".join(option for option in _BWRAP_OPTIONS if option not in known)


def _version(bwrap: str) -> str:
    return _try([bwrap, "--version"]).said


def _try_python(code: str, *arguments: str) -> Try:
    # -P: a module in the caller's folder is not what we want to try.
    return _try([sys.executable, "-P", "-c", code, *arguments])


def _try(argv: list[str]) -> Try:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRY_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Try(
            enforced=False, said=f"did not answer within {_TRY_S:g} s", timed_out=True
        )
    except OSError as error:
        return Try(enforced=False, said=str(error))
    lines = (done.stderr + done.stdout).strip().splitlines()
    said = lines[-1] if lines else f"exit status {done.returncode} without a word"
    return Try(enforced=done.returncode == 0 and said == "enforced", said=said)


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
