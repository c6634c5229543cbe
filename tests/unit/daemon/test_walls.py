"""What a cell was planned from, compared with what the host is like by now."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from bashd.daemon import survey
from bashd.daemon.masks import Deputies, find_deputies
from bashd.daemon.survey import Question
from bashd.daemon.walls import Walls
from tests.adversarial.attack import listening


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
