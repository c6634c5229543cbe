"""No attempt is left out for anybody: as root, as a user, under either runner."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.adversarial.entries import ENTRIES
from tests.support.stage import REPOSITORY

WHO = frozenset({"root", "user", "served"})
RUNNERS = frozenset({"bwrap", "landlock"})
WANTED = frozenset(itertools.product(("root", "ordinary"), RUNNERS))
TOGETHER = "multiuser/"
"""Tests of root and two ordinary users on one daemon."""

Combination = tuple[str, str]


@pytest.fixture(scope="module")
def collected() -> dict[str, set[Combination]]:
    """Every test that an entry names, with the combinations it is run on."""
    files = {name.partition("::")[0] for e in ENTRIES.values() for name in e.shown_by}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--collect-only", "-q", "--no-header"),
            *("-p", "no:cacheprovider", *sorted(f"tests/{file}" for file in files)),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, set[Combination]] = defaultdict(set)
    for line in done.stdout.splitlines():
        match = re.fullmatch(r"tests/([^\[]+::[^\[]+)(?:\[(.*)\])?", line)
        if match:
            found[match[1]] |= combinations(match[1], match[2] or "")
    return found


def combinations(test: str, parameters: str) -> set[Combination]:
    """Return who and what a test's parameters name.

    One that names no runner is about what comes before any, or tries both itself.
    """
    words = set(parameters.split("-"))
    who = words & WHO or (WHO if test.startswith(TOGETHER) else set[str]())
    kinds = {"root" if name == "root" else "ordinary" for name in who}
    return set(itertools.product(kinds, words & RUNNERS or RUNNERS))


@pytest.mark.parametrize("name", ENTRIES)
def test_an_attempt_is_made_by_everybody_under_both_runners(
    collected: dict[str, set[Combination]], name: str
):
    entry = ENTRIES[name]
    gone = [test for test in entry.shown_by if test not in collected]
    assert not gone, "there is no such test"
    made = set[Combination]().union(*(collected[test] for test in entry.shown_by))
    assert made >= WANTED, f"{entry.goal}: not as {sorted(WANTED - made)}"


def test_a_missing_combination_is_seen():
    assert combinations("x.py::test", "root-bwrap-more") == {("root", "bwrap")}
    assert combinations("x.py::test", "served-landlock") == {("ordinary", "landlock")}
    assert combinations("x.py::test", "") == set()
