"""Looks at what no rung depends on: cgroups, the audit records, whose files are linked.

Cgroups make kills and limits exact; the kernel's audit records prove a refusal that
stderr only suggests. And no wall tells the names of one file apart, so it matters who
may give a file another one.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from pathlib import Path
from typing import Final

from bashd.cli.doctor_findings import Finding, State
from bashd.launcher.kernel import landlock_abi

_CONTROLLERS: Final = ("memory", "pids", "cpu")
"""What bashd's limits use."""
_DELEGATE: Final = (
    "run bashd as a service with Delegate=yes, as the units in systemd/ do"
)

# linux/capability.h, linux/netlink.h and linux/audit.h
_CAP_AUDIT_READ: Final = 37
_NETLINK_AUDIT: Final = 9
_AUDIT_GET: Final = 1000
_NLMSG_ERROR: Final = 2
_NLM_F_REQUEST: Final = 1
_HEADER: Final = struct.Struct("=IHHII")
_RECORDING_ABI: Final = 7
"""Landlock's ABI from which on the kernel records refusals. Source: landlock(7)."""
_BACKLOG: Final = 8192
"""Records: what distributions set whose users write audit rules; the kernel's own 64
are gone after a refused `rm -r`."""
_ANSWER_S: Final = 1.0
"""Seconds for the kernel's answer, which comes at once where it comes at all."""


def look_at_host() -> list[Finding]:
    """Look at cgroups, audit and hard links."""
    return [_cgroup(), _audit(), judge_hard_links(_protected_hardlinks())]


def _cgroup() -> Finding:
    name = "cgroup"
    folder = _own_cgroup()
    if folder is None:
        advice = "boot with the unified cgroup hierarchy (systemd's default)"
        return Finding(name, State.MISSING, "version 2 is not mounted", advice)
    controllers = (folder / "cgroup.controllers").read_text().split()
    usable = [word for word in _CONTROLLERS if word in controllers]
    if not _can_make_a_child(folder):
        detail = f"{folder} is not delegated to this account"
        return Finding(name, State.MISSING, detail, _DELEGATE)
    if missing := [word for word in _CONTROLLERS if word not in usable]:
        detail = f"kills are exact, but {', '.join(missing)} cannot be limited"
        # A controller that version 1 holds is not to be had in version 2.
        advice = "boot with the unified hierarchy alone, and delegate the controllers"
        return Finding(name, State.LIMITED, detail, advice)
    return Finding(name, State.OK, f"{folder} is ours, with {', '.join(usable)}")


def _own_cgroup() -> Path | None:
    """Return this process's folder in the version 2 hierarchy."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
        place = Path("/proc/self/cgroup").read_text()
    except OSError:
        return None
    # Field 5 is the mount point; the type follows the separator " - ".
    mount = re.search(r"^(?:\S+ ){4}(\S+) .* - cgroup2 ", mounts, re.MULTILINE)
    own = re.search(r"^0::/(.*)$", place, re.MULTILINE)
    if mount is None or own is None:
        return None
    folder = Path(mount[1]) / own[1]
    return folder if (folder / "cgroup.controllers").is_file() else None


def _can_make_a_child(folder: Path) -> bool:
    child = folder / f"bashd-doctor-{os.getpid()}"
    try:
        child.mkdir()
        child.rmdir()
    except OSError:
        return False
    # A process can only be moved by one who may write to the common ancestor.
    return os.access(folder / "cgroup.procs", os.W_OK)


def _audit() -> Finding:
    name = "audit"
    if not _has_capability(_CAP_AUDIT_READ):
        detail = (
            "reading the kernel's records needs CAP_AUDIT_READ, a service of root's"
        )
        advice = "for denials that the kernel proves, run bashd as root's service"
        return Finding(name, State.MISSING, detail, advice)
    abi = landlock_abi()
    if abi < _RECORDING_ABI:
        detail = f"Landlock ABI {abi} records no refusals, {_RECORDING_ABI} does (Linux 6.15)"
        return Finding(name, State.MISSING, detail, "run a newer kernel")
    try:
        enabled, backlog_limit = _audit_status()
    except TimeoutError:
        return Finding(name, State.UNKNOWN, "the kernel did not answer")
    except OSError as error:
        return Finding(name, *_audit_error(error))
    return judge_audit(enabled=enabled, backlog_limit=backlog_limit)


def judge_audit(*, enabled: bool, backlog_limit: int) -> Finding:
    """Say what the kernel's audit settings are good for.

    Args:
        enabled: Whether refusals are recorded.
        backlog_limit: Records that the kernel holds at most until they are read.
    """
    name = "audit"
    if not enabled:
        detail = "off (audit_enabled is 0): a denial is what a command's stderr says"
        advice = (
            "for denials that the kernel proves, turn it on: `auditctl -e 1 -b"
            f" {_BACKLOG}`, or boot with audit=1 audit_backlog_limit={_BACKLOG}"
        )
        return Finding(name, State.LIMITED, detail, advice)
    if backlog_limit < _BACKLOG:
        detail = f"on, but a burst loses records: the kernel holds {backlog_limit}"
        advice = f"have it hold more: `auditctl -b {_BACKLOG}`"
        return Finding(name, State.LIMITED, detail, advice)
    return Finding(name, State.OK, "on, and its records can be read")


def judge_hard_links(setting: str | None) -> Finding:
    """Judge ``fs.protected_hardlinks``; None where it cannot be read.

    Source: proc_sys_fs(5).
    """
    name = "hard links"
    if setting is None:
        return Finding(name, State.UNKNOWN, "fs.protected_hardlinks cannot be read")
    if setting == "0":
        detail = (
            "anybody may link your files into a folder that both can write to, and a"
            " command that works there writes through the link"
        )
        advice = "as root: sysctl fs.protected_hardlinks=1"
        return Finding(name, State.LIMITED, detail, advice)
    return Finding(name, State.OK, "only one's own files can be linked")


def _protected_hardlinks() -> str | None:
    try:
        return Path("/proc/sys/fs/protected_hardlinks").read_text().strip()
    except OSError:
        return None


def _audit_error(error: OSError) -> tuple[State, str]:
    if error.errno in (errno.EPROTONOSUPPORT, errno.ECONNREFUSED):
        return State.MISSING, "not in this kernel, or not for this container"
    if error.errno == errno.EPERM:
        return State.UNKNOWN, "the kernel does not tell this account whether it is on"
    return State.UNKNOWN, f"could not tell: {error}"


def _audit_status() -> tuple[bool, int]:
    """Return whether audit is on and how many records the kernel holds at most.

    Fields 1 and 5 of ``struct audit_status``; a limit of 0 is none.
    """
    request = _HEADER.pack(_HEADER.size, _AUDIT_GET, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_AUDIT) as link:
        link.settimeout(_ANSWER_S)
        link.bind((0, 0))
        link.sendto(request, (0, 0))
        answer = link.recv(8192)
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind == _NLMSG_ERROR:
        (number,) = struct.unpack_from("=i", answer, _HEADER.size)
        raise OSError(-number, os.strerror(-number))
    fields = struct.unpack_from("=6I", answer, _HEADER.size)
    return fields[1] != 0, fields[5] or _BACKLOG


def _has_capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text()
    effective = re.search(r"^CapEff:\s+([0-9a-f]+)$", status, re.MULTILINE)
    return effective is not None and bool(int(effective[1], 16) >> number & 1)
