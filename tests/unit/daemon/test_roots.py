"""Extra writable roots: canonical first, then bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from bashd.daemon.roots import resolve_roots


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path.resolve()
    for name in ("workspace", "cache", "victim"):
        (place / name).mkdir()
    return place


def resolve(
    place: Path, *wanted: Path, bounds: tuple[Path, ...] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return resolve_roots(
        str(place / "workspace"),
        [str(path) for path in wanted],
        None if bounds is None else tuple(map(str, bounds)),
    )


def test_the_workspace_comes_first_and_each_root_once(place: Path):
    roots, notes = resolve(place, place / "cache", place / "workspace", place / "cache")
    assert roots == (str(place / "workspace"), str(place / "cache"))
    assert notes == ()


def test_a_missing_root_is_left_out_and_said(place: Path):
    roots, notes = resolve(place, place / "nowhere")
    assert len(roots) == 1
    assert str(place / "nowhere") in notes[0]
    assert "No such file" in notes[0]


def test_a_file_is_no_root(place: Path):
    (place / "file").touch()
    assert "is no folder" in resolve(place, place / "file")[1][0]


def test_a_link_the_user_made_leads_to_the_real_folder(place: Path):
    (place / "link").symlink_to(place / "cache")
    assert resolve(place, place / "link")[0][1] == str(place / "cache")
    (place / "up").symlink_to("victim/../link")
    assert resolve(place, place / "up")[0][1] == str(place / "cache")


def test_a_link_that_commands_could_have_planted_is_refused(place: Path):
    (place / "workspace/cache").symlink_to(place / "victim")
    roots, notes = resolve(place, place / "workspace/cache")
    assert len(roots) == 1
    assert "commands may change" in notes[0]


def test_a_link_on_the_way_inside_another_root_is_refused(place: Path):
    (place / "cache/sub").symlink_to(place)
    roots, notes = resolve(place, place / "cache", place / "cache/sub/victim")
    assert roots == (str(place / "workspace"), str(place / "cache"))
    assert "commands may change" in notes[0]


def test_links_that_go_round_are_refused(place: Path):
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    assert len(resolve(place, place / "a/x")[0]) == 1


def test_the_ceiling_counts_after_links_are_followed(place: Path):
    (place / "cache/out").symlink_to(place / "victim")
    (place / "allowed").symlink_to(place / "cache")
    inside = resolve(place, place / "allowed", bounds=(place / "allowed",))
    assert inside[0][1] == str(place / "cache")
    roots, notes = resolve(place, place / "cache/out", bounds=(place / "cache",))
    assert len(roots) == 1
    assert "ceiling" in notes[0]
    assert resolve(place, place / "cache", bounds=())[0] == (str(place / "workspace"),)
