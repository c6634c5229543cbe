"""Makes a session's own network: a namespace with nothing but a loopback that is up.

Runs as a short-lived process of its own, because a user namespace can only be entered
by a process with one thread. It says ``ready`` on stdout and waits for end of file on
stdin, during which the daemon opens its namespaces by /proc; the descriptors keep them.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

from . import kernel

# linux/sockios.h, net/if.h
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFREQ = struct.Struct("16sh22x")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def bring_up_loopback() -> None:
    """Set the loopback of this network namespace up. Source: netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        current = fcntl.ioctl(probe, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0))
        flags = _IFREQ.unpack(current)[1]
        fcntl.ioctl(probe, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", flags | _IFF_UP))


def main() -> None:
    """Make the namespaces and hold them until end of file on stdin."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        kernel.unshare(kernel.CLONE_NEWNET)
    else:
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNET)
        # Source: user_namespaces(7): setgroups must be denied before the gid map.
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    bring_up_loopback()
    os.write(1, b"ready")
    sys.stdin.buffer.read()
