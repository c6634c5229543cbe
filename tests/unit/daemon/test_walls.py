"""What a cell was planned from, compared with what the host is like by now."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bashd.daemon import survey
from bashd.daemon.masks import Deputies, find_deputies
from bashd.daemon.survey import Question
from bashd.daemon.walls import Walls
from tests.adversarial.attack import listening
from tests.support.stage import REPOSITORY

if TYPE_CHECKING:
    from tests.support.accounts import Account


@pytest.fixture
def socket_path(reachable_tmp: Path) -> str:
    """A place for a socket, where a cell has no folder of its own."""
    folder = reachable_tmp / f"walls-{secrets.token_hex(4)}"
    folder.mkdir()
    return str(folder / "deputy")


def deputies(path: str) -> Deputies:
    """Return what is found at *path* and nowhere else on the machine."""
    found = tuple(one for one in find_deputies(()).found if one[0] == path)
    assert found
    return Deputies(found)


def test_a_deputy_that_stays_has_not_changed(socket_path: str):
    with listening(socket_path):
        assert not deputies(socket_path).any_changed()


def test_a_deputy_that_is_gone_or_replaced_has_changed(socket_path: str):
    with listening(socket_path):
        found = deputies(socket_path)
    assert found.any_changed()
    with listening(socket_path):
        assert found.any_changed()


def test_a_deputy_that_went_before_the_stamp_was_taken_makes_the_plan_outdated(
    socket_path: str,
):
    """A cell cannot be built from such a plan, and is not to fail for it."""
    workspace = Path(socket_path).parent / "workspace"
    workspace.mkdir()
    with listening(socket_path):
        seen = Walls.look(Question(str(workspace), 0, "/root", "", path_sockets=True))
        assert socket_path in seen.survey.found.deputies
    # As if it had gone in the middle of that look.
    seen.stamp = survey.stamp(seen.survey.watched)
    assert seen.are_outdated()


CROWD = """
import contextlib, socket, sys
from bashd.daemon.masks import find_deputies
with contextlib.ExitStack() as stack:
    for number in range(int(sys.argv[2])):
        one = stack.enter_context(socket.socket(socket.AF_UNIX))
        one.bind(f"{sys.argv[1]}/{number}")
    found = find_deputies(())
    print(len(found.found), found.complete)
"""


@pytest.mark.parametrize(("count", "said"), [(256, "256 True\n"), (257, "256 False\n")])
def test_more_deputies_than_can_be_covered_are_known_to_be_there(
    socket_path: str, root_account: Account, count: int, said: str
):
    """In a network namespace of its own, whose table lists no others."""
    del root_account
    folder = Path(socket_path).parent
    program = [sys.executable, "-c", CROWD, str(folder), str(count)]
    done = subprocess.run(
        ["unshare", "--net", "--", *program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == said
