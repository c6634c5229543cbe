"""Links are followed as far as they can be, and nothing that is named raises."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bashd.daemon.real_path import real_path
from tests.support.accounts import Account, argv_as
from tests.support.stage import Install


def test_what_can_be_followed_is_followed(tmp_path: Path):
    (tmp_path / "to").mkdir()
    (tmp_path / "link").symlink_to("to")
    named = f"{tmp_path}/link/../link/./file"
    assert real_path(named) == f"{os.path.realpath(tmp_path)}/to/file"
    (tmp_path / "loop").symlink_to("loop")
    assert real_path(f"{tmp_path}/loop") == f"{os.path.realpath(tmp_path)}/loop"


@pytest.mark.parametrize("odd", ["/a\0b", "/x/" + "y" * 5000, "/", "//a/../.."])
def test_what_can_be_no_path_raises_nothing(odd: str):
    assert real_path(odd).startswith("/")


SHOW = """
import sys
from bashd.daemon.real_path import real_path
print(real_path(sys.argv[1]))
"""


def test_a_link_that_is_closed_is_where_it_leads_itself(
    ordinary_user: Account, root_account: Account, reachable_tmp: Path, install: Install
):
    """The folder of root's first process; and where the way to it was a link."""
    del root_account
    link = reachable_tmp / "to-a-closed-one"
    link.symlink_to("/proc/1/cwd")
    for named in ("/proc/1/cwd/x", f"{link}/x", f"{link}/y/../x"):
        done = subprocess.run(
            argv_as(ordinary_user, [install.python, "-P", "-c", SHOW, named]),
            env=ordinary_user.environment(),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "/proc/1/cwd/x\n", done.stderr
    link.unlink()
