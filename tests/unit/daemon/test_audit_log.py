"""The log's queue: what a call hands over is written later, or counted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from bashd.core.audit_chain import Link
from bashd.daemon import audit_log
from bashd.daemon.audit_file import AuditFile
from bashd.daemon.audit_log import AuditLog

pytestmark = pytest.mark.trio


class Disk:
    """Stands where the file stands; full when told so."""

    def __init__(self) -> None:
        self.path = Path("/audit.jsonl")
        self.lines: list[Mapping[str, Any]] = []
        self.full = False

    def append(self, entries: Iterable[Mapping[str, Any]]) -> list[Link]:
        if self.full:
            raise OSError(28, "No space left on device")
        added = list(entries)
        self.lines += added
        return [Link(number) for number, _ in enumerate(added)]

    def close(self) -> None:
        return

    async def has(self, count: int) -> None:
        with trio.fail_after(20):
            while len(self.lines) < count:  # noqa: ASYNC110 - a thread adds them
                await trio.sleep(0.01)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def log(disk: Disk) -> AuditLog:
    return AuditLog(cast("AuditFile", disk))


def events(disk: Disk) -> list[Any]:
    return [line["event"] for line in disk.lines]


async def test_entries_are_gathered_and_written_in_their_order(
    log: AuditLog, disk: Disk, nursery: trio.Nursery
) -> None:
    await nursery.start(log.serve)
    for name in "abc":
        log.note(name)
    assert events(disk) == []
    await disk.has(3)
    assert events(disk) == ["a", "b", "c"]
    nursery.cancel_scope.cancel()


async def test_what_is_held_is_written_only_if_it_outlives_a_turn(
    log: AuditLog, disk: Disk, nursery: trio.Nursery
) -> None:
    await nursery.start(log.serve)
    log.hold("short", lambda: {"event": "start", "of": "short"})
    log.let_go("short")
    log.hold("long", lambda: {"event": "start", "of": "long"})
    await disk.has(1)
    assert [line["of"] for line in disk.lines] == ["long"]
    log.let_go("long")
    nursery.cancel_scope.cancel()


async def test_a_full_disk_is_said_once_and_loses_nothing_that_fits(
    log: AuditLog, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    disk.full = True
    for name in "abc":
        log.note(name)
        await log.flush()
    said = [r.message for r in caplog.records if r.levelno == logging.ERROR]
    assert len(said) == 1
    assert "No space left" in said[0]
    disk.full = False
    log.note("d")
    await log.flush()
    assert events(disk) == ["a", "b", "c", "d"]
    assert "written again" in caplog.records[-1].message


async def test_what_does_not_fit_is_counted(
    log: AuditLog, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_QUEUED", 3)
    disk.full = True
    for number in range(5):
        log.note(str(number))
    await log.flush()
    disk.full = False
    await log.flush()
    assert events(disk)[:3] == ["0", "1", "2"]
    assert [line["count"] for line in disk.lines if line["event"] == "dropped"] == [2]


async def test_closing_writes_what_is_left(log: AuditLog, disk: Disk) -> None:
    log.note("last")
    await log.close()
    assert events(disk) == ["last"]


async def test_a_log_that_is_off_takes_nothing() -> None:
    log = AuditLog()
    log.note("x")
    log.hold("k", lambda: {"event": "y"})
    await log.flush()
    assert log.is_on is False
