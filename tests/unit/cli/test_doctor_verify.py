"""What the battery's outcomes mean; the battery itself is run in tests/adversarial."""

from __future__ import annotations

import pytest

from bashd.cli import doctor_verify_inside
from bashd.cli.doctor_verify_walls import (
    THROUGH,
    WALLS,
    Attempt,
    Outcome,
    RungReport,
    Wall,
    WallReport,
    exit_status,
    judge_wall,
)

WALL = Wall("a wall", (Attempt("a", "do a", gap_under=("landlock",)),))


def judged(free: str | None, walled: str | None, rung: str = "bwrap") -> Outcome:
    def as_map(said: str | None) -> dict[str, str]:
        return {} if said is None else {"a": said}

    return judge_wall(WALL, rung, as_map(free), as_map(walled)).outcome


def test_stopped_counts_only_if_it_works_without_walls():
    assert judged(THROUGH, "EACCES: no") is Outcome.HOLDS
    assert judged("EPERM: no", "EACCES: no") is Outcome.NOT_TRIED
    assert judged(None, "EACCES: no") is Outcome.NOT_TRIED


def test_getting_through_is_a_failure_whatever_the_control_says():
    assert judged(THROUGH, THROUGH) is Outcome.BROKEN
    assert judged("EPERM: no", THROUGH) is Outcome.BROKEN
    assert judged(THROUGH, THROUGH, "landlock") is Outcome.GAP


def test_an_attempt_that_failed_on_its_own_account_proves_nothing():
    assert judged(THROUGH, "failed by itself: KeyError('x')") is Outcome.NOT_TRIED
    assert judged(THROUGH, None) is Outcome.NOT_TRIED


def rung(
    *outcomes: Outcome, enforcement: str = "full", usable: bool = True
) -> RungReport:
    tried = {
        Outcome.HOLDS: (THROUGH, "EPERM: no", "bwrap"),
        Outcome.GAP: (THROUGH, THROUGH, "landlock"),
        Outcome.BROKEN: (THROUGH, THROUGH, "bwrap"),
    }
    walls: list[WallReport] = []
    for outcome in outcomes:
        free, walled, name = tried[outcome]
        walls.append(judge_wall(WALL, name, {"a": free}, {"a": walled}))
    return RungReport("r", usable, enforcement, walls=tuple(walls))


@pytest.mark.parametrize(
    ("rungs", "status"),
    [
        ([rung(Outcome.HOLDS)], 0),
        ([rung(Outcome.HOLDS), rung(Outcome.GAP, enforcement="partial")], 0),
        ([rung(usable=False), rung(Outcome.GAP, enforcement="partial")], 1),
        ([rung(Outcome.HOLDS, enforcement="partial")], 1),
        ([rung(usable=False), rung(usable=False)], 2),
        ([rung(Outcome.HOLDS), rung(Outcome.BROKEN, enforcement="partial")], 3),
        ([rung(Outcome.GAP), rung(Outcome.BROKEN)], 3),
    ],
)
def test_exit_status(rungs: list[RungReport], status: int):
    assert exit_status(rungs) == status


def test_every_attempt_of_the_table_exists_and_every_attempt_is_in_the_table():
    named = [attempt.name for wall in WALLS for attempt in wall.attempts]
    assert sorted(named) == sorted(doctor_verify_inside.ATTEMPTS)
