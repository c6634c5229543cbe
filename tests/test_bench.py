"""The benchmark measures what it says; whether budgets are kept is not for here."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.bench.__main__ import line
from tests.bench.budgets import BUDGETS, Figure
from tests.bench.rivals import compare, raw_bwrap_argv, run_quietly
from tests.support.stage import REPOSITORY


def test_both_sides_take_turns_and_the_ratio_is_ours_over_theirs():
    turns: list[str] = []
    found = compare(
        lambda: turns.append("ours"), lambda: turns.append("theirs"), rounds=3, batch=2
    )
    # One of each comes first, to warm up.
    assert turns == ["ours", "theirs", *["ours", "ours", "theirs", "theirs"] * 3]
    assert found.rounds == 6
    assert found.ratio == pytest.approx(found.ours_ms / found.theirs_ms)


def test_a_side_that_fails_is_not_timed():
    with pytest.raises(subprocess.CalledProcessError):
        run_quietly(["false"])


def test_raw_bubblewrap_really_runs_and_confines():
    run_quietly(raw_bwrap_argv("! touch /etc/bashd-bench 2>/dev/null"))


@pytest.mark.parametrize(
    ("value", "at_least", "kept"),
    [(0.5, False, True), (0.7, False, False), (0.5, True, False), (0.7, True, True)],
)
def test_a_budget_is_an_upper_or_a_lower_bound(
    value: float, at_least: bool, kept: bool
):
    figure = Figure("name", value, 0.6, "x", "detail", at_least=at_least)
    assert figure.kept is kept
    assert line(figure, as_json=False).startswith("ok" if kept else "OVER")


def test_every_budget_can_be_measured(root_account: object):
    # cold, throughput and output take longer, and go through the same client.
    names = ["idle", "cell", "warm", "cli"]
    assert set(names) < set(BUDGETS)
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--rounds", "1", "--json", *names],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = [json.loads(text) for text in done.stdout.splitlines()]
    assert len(figures) == len(names)
    assert all(figure["value"] > 0 for figure in figures)
