"""Whether root's code is root's: every way in which it might not be."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bashd.daemon.trust import find_offence

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="needs root, to own what is looked at"
)
_OTHER = 65534


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A file of root's in folders of root's, below a sticky /tmp."""
    path = tmp_path / "lib" / "module.py"
    path.parent.mkdir()
    path.write_text("pass\n")
    path.chmod(0o644)
    return path


def test_what_is_roots_all_the_way_is_trusted(module: Path):
    assert find_offence(str(module)) is None


def test_a_file_of_somebody_else_is_named(module: Path):
    os.chown(module, _OTHER, _OTHER)
    assert find_offence(str(module)) == (
        f"{module} belongs to uid {_OTHER}; chown root {module}"
    )


@pytest.mark.parametrize(("mode", "fix"), [(0o666, "chmod o-w"), (0o664, "chmod g-w")])
def test_a_file_others_can_write_to_is_named_with_the_fix(
    module: Path, mode: int, fix: str
):
    os.chown(module, 0, _OTHER)
    module.chmod(mode)
    assert f"{fix} {module}" in str(find_offence(str(module)))


def test_roots_own_group_may_write(module: Path):
    module.chmod(0o664)
    assert find_offence(str(module)) is None


def test_an_access_list_is_not_mistaken_for_roots_group(module: Path):
    done = subprocess.run(
        ["setfacl", "-m", f"u:{_OTHER}:rw", str(module)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("no access lists here")
    assert "chmod g-w" in str(find_offence(str(module)))


def test_a_folder_on_the_way_counts(module: Path):
    module.parent.chmod(0o777)
    assert str(module.parent) in str(find_offence(str(module)))


def test_a_sticky_folder_on_the_way_does_not(module: Path):
    module.parent.chmod(0o1777)
    assert find_offence(str(module)) is None


def test_a_link_leads_on_to_what_is_checked(module: Path, tmp_path: Path):
    link = tmp_path / "link"
    link.symlink_to("lib/../lib/module.py")
    assert find_offence(str(link)) is None
    module.chmod(0o666)
    assert str(module) in str(find_offence(str(link)))


def test_a_folder_that_a_link_passes_through_counts(module: Path, tmp_path: Path):
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    (open_folder / "lib").symlink_to(module.parent)
    open_folder.chmod(0o777)
    path = open_folder / "lib" / "module.py"
    # Nothing that is reached is anybody else's, but somebody can lead it elsewhere.
    assert str(open_folder) in str(find_offence(str(path)))


def test_a_link_of_somebody_else_counts(module: Path, tmp_path: Path):
    link = tmp_path / "link"
    link.symlink_to(module)
    os.chown(link, _OTHER, _OTHER, follow_symlinks=False)
    assert f"{link} belongs to uid {_OTHER}" in str(find_offence(str(link)))


def test_links_in_a_circle_come_to_an_end(tmp_path: Path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.symlink_to(two)
    two.symlink_to(one)
    assert "too many links" in str(find_offence(str(one)))
