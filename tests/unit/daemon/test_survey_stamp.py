"""The look before every command tells exactly what a stamp would tell."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from bashd.daemon.survey import is_unchanged, stamp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _replace(folder: Path) -> None:
    (folder / "there").rename(folder / "aside")
    (folder / "there").mkdir()


def _move_parent(folder: Path) -> None:
    (folder / "deep").rename(folder / "moved")


def _link_instead(folder: Path) -> None:
    (folder / "deep/er").rmdir()
    (folder / "deep/er").symlink_to(folder / "there")


CHANGES: dict[str, Callable[[Path], object]] = {
    "an entry": lambda folder: (folder / "there/new").touch(),
    "another mode": lambda folder: (folder / "there").chmod(0o700),
    "another folder of the name": _replace,
    "one that was missing": lambda folder: (folder / "missing").mkdir(),
    "one that goes": lambda folder: (folder / "there").rmdir(),
    "a parent that moves": _move_parent,
    "a link instead": _link_instead,
    "content": lambda folder: (folder / "file").write_text("other"),
    "times": lambda folder: os.utime(folder / "there", (1, 1)),
}


@pytest.fixture
def places(tmp_path: Path) -> tuple[str, ...]:
    for name in ("there", "deep/er"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("one")
    names = ("there", "deep/er", "file", "missing", "missing/too")
    return tuple(f"{tmp_path}/{name}" for name in names)


def test_unchanged_as_long_as_nothing_happens(places: tuple[str, ...]):
    before = stamp(places)
    assert is_unchanged(places, before)
    assert stamp(places) == before


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_is_seen(
    places: tuple[str, ...], tmp_path: Path, change: Callable[[Path], object]
):
    before = stamp(places)
    # Not within the tick of the clock that stamps are made with.
    while not _has_ticked(tmp_path, before):
        pass
    change(tmp_path)
    assert not is_unchanged(places, before)
    assert stamp(places) != before


def _has_ticked(folder: Path, before: tuple[object, ...]) -> bool:
    """Whether a change made now has another time than those before."""
    probe = folder.parent / f"{folder.name}-probe"
    probe.touch()
    now = probe.stat().st_ctime_ns
    probe.unlink()
    newest = max(was[2] for was in before if isinstance(was, tuple))
    return now > newest
