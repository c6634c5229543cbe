"""Repositories are found where they appear, without walking the tree again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bashd.daemon import repository_watch
from bashd.daemon.folder_watch import Changes, FolderWatch
from bashd.daemon.repository_watch import RepositoryWatch


@pytest.fixture
def watch() -> Iterator[FolderWatch]:
    watch = FolderWatch()
    yield watch
    watch.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "root"
    folder.mkdir()
    return folder


def look(repositories: RepositoryWatch, watch: FolderWatch, root: Path) -> list[str]:
    repositories.take(watch.take())
    return sorted(str(Path(p).relative_to(root)) for p in repositories.known)


def repositories_of(root: Path, watch: FolderWatch | None) -> RepositoryWatch:
    found = RepositoryWatch((str(root),), watch)
    found.walk()
    return found


def test_the_first_walk_finds_what_is_there_and_not_the_roots_own(
    root: Path, watch: FolderWatch
):
    for name in (".git", "a/b/.git", "c/.git/objects"):
        (root / name).mkdir(parents=True)
    (root / "w").mkdir()
    (root / "w/.git").write_text("gitdir: ../.git/worktrees/w")
    for name in ("HEAD", "objects", "refs"):
        (root / "bare.git" / name).mkdir(parents=True)
    found = repositories_of(root, watch)
    assert look(found, watch, root) == ["a/b/.git", "bare.git", "c/.git", "w/.git"]
    assert not found.bounded


def test_nothing_is_read_while_nothing_happens(root: Path, watch: FolderWatch):
    (root / "a").mkdir()
    repositories_of(root, watch)
    assert watch.is_quiet()
    assert watch.take() == Changes()
    (root / "a/x").touch()
    assert not watch.is_quiet()
    assert [event.name for event in watch.take().events] == ["x"]
    assert watch.is_quiet()


def test_a_folder_that_appears_is_looked_into(root: Path, watch: FolderWatch):
    (root / "old").mkdir()
    found = repositories_of(root, watch)
    (root / "old/new/deep").mkdir(parents=True)
    (root / "old/new/deep/.git").mkdir()
    assert look(found, watch, root) == ["old/new/deep/.git"]
    # What was new is watched from now on.
    (root / "old/new/other").mkdir()
    (root / "old/new/other/.git").touch()
    assert look(found, watch, root) == ["old/new/deep/.git", "old/new/other/.git"]


def test_a_folder_that_moves_takes_its_repository_along(root: Path, watch: FolderWatch):
    (root / "a/r/.git").mkdir(parents=True)
    found = repositories_of(root, watch)
    (root / "a").rename(root / "b")
    assert look(found, watch, root) == ["b/r/.git"]
    (root / "b/s").mkdir()
    (root / "b/s/.git").mkdir()
    assert look(found, watch, root) == ["b/r/.git", "b/s/.git"]


def test_a_repository_made_part_by_part_in_a_known_folder_is_found(
    root: Path, watch: FolderWatch
):
    (root / "x").mkdir()
    found = repositories_of(root, watch)
    for name in ("objects", "refs"):
        (root / "x" / name).mkdir()
    assert look(found, watch, root) == []
    (root / "x/HEAD").touch()
    assert look(found, watch, root) == ["x"]


def test_what_is_removed_is_forgotten(root: Path, watch: FolderWatch):
    (root / "a/.git").mkdir(parents=True)
    found = repositories_of(root, watch)
    (root / "a/.git").rmdir()
    assert look(found, watch, root) == []


def test_links_are_not_followed(root: Path, watch: FolderWatch, tmp_path: Path):
    (tmp_path / "outside/.git").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "loop").symlink_to(root)
    assert look(repositories_of(root, watch), watch, root) == []


def test_a_tree_beyond_the_bounds_is_watched_from_the_top(
    root: Path, watch: FolderWatch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(repository_watch, "MAX_FIRST_FOLDERS", 5)
    for name in ("a", "b", "node_modules"):
        for inner in ("1", "2", "3"):
            (root / name / inner / "deep").mkdir(parents=True)
    found = repositories_of(root, watch)
    assert found.bounded
    assert len(watch) == 5
    # Near the top and what people write comes before what others made.
    (root / "a/.git").mkdir()
    (root / "node_modules/1/deep/.git").mkdir()
    assert look(found, watch, root) == ["a/.git"]


def test_a_folder_full_of_names_ends_the_walk(
    root: Path, watch: FolderWatch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(repository_watch, "MAX_ENTRIES", 50)
    for number in range(100):
        (root / str(number)).touch()
    assert repositories_of(root, watch).bounded


def test_lost_events_start_the_walk_again(root: Path, watch: FolderWatch):
    found = repositories_of(root, watch)
    (root / "a/.git").mkdir(parents=True)
    watch.take()
    found.take(Changes(overflow=True))
    assert look(found, watch, root) == ["a/.git"]


def test_more_changes_than_the_kernel_keeps_are_an_overflow(
    root: Path, watch: FolderWatch
):
    repositories_of(root, watch)
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    one, other = root / "1", root / "2"
    one.touch()
    # Two events each; equal ones in a row would be counted once.
    for _ in range(most // 4 + 1):
        one.rename(other)
        other.rename(one)
    assert watch.take().overflow
    assert watch.is_quiet()


def test_without_inotify_the_walk_is_all_there_is(root: Path):
    (root / "a/.git").mkdir(parents=True)
    found = repositories_of(root, None)
    assert found.bounded
    assert found.known == (str(root / "a/.git"),)
