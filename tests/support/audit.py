"""The kernel's audit system for tests: turned on for a while, then put back exactly.

The setting is the machine's, so only one test session at a time may have it: a lock
file says whose it is and what to put back. Whoever finds values in it after a session
that was killed puts them back first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_HEADER = struct.Struct("=IHHII")
_STATUS = struct.Struct("=11I")  # struct audit_status, linux/audit.h
_GET, _SET, _ADD_RULE, _DEL_RULE = 1000, 1001, 1011, 1012
_ERROR = 2
_ENABLED, _PID, _BACKLOG_LIMIT, _BACKLOG_WAIT = 0x01, 0x04, 0x10, 0x20
_RULE_FIELDS = 64

LOCK = Path("/run/bashd-tests-audit.lock")
BACKLOG = 8192
"""Records the kernel may hold: enough for every test that does not flood on purpose."""


class Audit:
    """Reads and changes the kernel's audit settings; needs CAP_AUDIT_CONTROL."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)
        self._socket.settimeout(5)
        self._socket.bind((0, 0))
        self._number = 0

    def get(self) -> dict[str, int]:
        """Return the settings."""
        data = self._ask(_GET, b"", flags=1)
        fields = _STATUS.unpack_from(data.ljust(_STATUS.size, b"\0"))
        return {
            "enabled": fields[1],
            "backlog_limit": fields[5],
            "lost": fields[6],
            "backlog_wait": fields[9],
        }

    def set(
        self,
        *,
        enabled: int | None = None,
        backlog_limit: int | None = None,
        backlog_wait: int | None = None,
    ) -> None:
        """Change what is given, and nothing else; *backlog_wait* is in jiffies.

        So long, a minute by default, the kernel lets whoever causes a record, and
        whoever asks it anything, wait for room.
        """
        mask = (
            (enabled is not None and _ENABLED)
            | (backlog_limit is not None and _BACKLOG_LIMIT)
            | (backlog_wait is not None and _BACKLOG_WAIT)
        )
        limits = (backlog_limit or 0, 0, 0, 0, backlog_wait or 0, 0)
        values = (mask, enabled or 0, 0, 0, 0, *limits)
        self._ask(_SET, _STATUS.pack(*values), flags=5)

    @contextlib.contextmanager
    def excluding(self, kind: int) -> Generator[None, None, None]:
        """Have a rule keep records of one type from being logged."""
        # struct audit_rule_data: list 5 (exclude), action 2 (always), one field:
        # AUDIT_MSGTYPE (12) equal to *kind*.
        rule = struct.pack("=3I", 5, 2, 1) + bytes(4 * _RULE_FIELDS)
        for value in (12, kind, 0x40000000):
            rule += struct.pack("=I", value) + bytes(4 * (_RULE_FIELDS - 1))
        rule += struct.pack("=I", 0)
        self._ask(_ADD_RULE, rule, flags=5)
        try:
            yield
        finally:
            self._ask(_DEL_RULE, rule, flags=5)

    @contextlib.contextmanager
    def unread(self) -> Generator[None, None, None]:
        """Have an audit daemon that does not read, which holds up everybody's records.

        The kernel retries and then takes it for gone: that is over after a while by
        itself, and when the block ends at the latest.
        """
        with contextlib.closing(Audit()) as idle:
            idle._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            values = (_PID, 0, 0, os.getpid(), 0, 0, 0, 0, 0, 0, 0)
            idle._ask(_SET, _STATUS.pack(*values), flags=5)
            yield

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _ask(self, kind: int, payload: bytes, *, flags: int) -> bytes:
        self._number += 1
        size = _HEADER.size + len(payload)
        header = _HEADER.pack(size, kind, flags, self._number, 0)
        self._socket.sendto(header + payload, (0, 0))
        while True:
            data = self._socket.recv(64 * 1024)
            _, answered, _, number, _ = _HEADER.unpack_from(data)
            if number != self._number:
                continue
            if answered == _ERROR:
                (code,) = struct.unpack_from("=i", data, _HEADER.size)
                if code:
                    raise OSError(-code, os.strerror(-code))
            return data[_HEADER.size :]


@contextlib.contextmanager
def audit_turned(*, on: bool) -> Generator[Audit, None, None]:
    """Turn audit on or off, then back, alone among the test sessions of this machine."""
    audit = Audit()
    with contextlib.closing(audit), LOCK.open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        before = audit.get() | json.loads(lock.read() or "{}")
        lock.truncate(0)
        lock.write(json.dumps(before))
        lock.flush()
        try:
            audit.set(enabled=int(on), backlog_limit=BACKLOG)
            yield audit
        finally:
            audit.set(
                enabled=before["enabled"],
                backlog_limit=before["backlog_limit"],
                backlog_wait=before["backlog_wait"],
            )
            lock.truncate(0)


@pytest.fixture(scope="module")
def audit() -> Iterator[Audit]:
    """Audit, on while the tests of a module run."""
    if os.geteuid() != 0:
        pytest.skip("needs root: CAP_AUDIT_CONTROL and CAP_AUDIT_READ")
    if (reason := _why_not()) is not None:
        pytest.skip(reason)
    with audit_turned(on=True) as control:
        yield control


@pytest.fixture(scope="module")
def audit_off() -> Iterator[None]:
    """No audit while the tests of a module run; only root's daemons would read it."""
    if os.geteuid() != 0 or _why_not() is not None:
        yield
        return
    with audit_turned(on=False):
        yield


def _why_not() -> str | None:
    """Return why audit cannot be turned on and off here, or None."""
    try:
        with contextlib.closing(Audit()) as control:
            enabled = control.get()["enabled"]
    except OSError as error:
        return f"no audit in this kernel or container: {error}"
    # AUDIT_LOCKED
    return "audit is locked until the next boot" if enabled == 2 else None
