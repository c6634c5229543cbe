"""Cases once more, with everything in them an ordinary user's.

The daemon serves only whom its socket shows, so the tests themselves have to be that
user: a session of their own, from a copy of the tests that the user can read. By default
it is the cases over a daemon, which otherwise only root's session runs; the others are
about no user, or have stations of an ordinary user's. BASHD_TEST_AS_USER=1 runs all.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.accounts import as_user
from tests.support.stage import GIVEN, REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.accounts import Account
    from tests.support.stage import Install

ALL = os.environ.get("BASHD_TEST_AS_USER") == "1"
_SELECTED = () if ALL else ("-k", "daemon", "--ignore-glob=*/test_executor_*")
_PATIENCE_S = 400 if ALL else 200


@pytest.mark.slow
@pytest.mark.timeout(_PATIENCE_S + 20)
@pytest.mark.usefixtures("bwrap_for_users")
def test_the_cases_hold_for_an_ordinary_user(
    ordinary_user: Account, install: Install, reachable_tmp: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("it is an ordinary user who runs the tests")
    copy = reachable_tmp / "tests-for-all"
    no_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "tests", copy / "tests", ignore=no_caches)
    shutil.copy(REPOSITORY / "pyproject.toml", copy)
    done = as_user(
        ordinary_user,
        [
            *(install.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("--ignore", "tests/contract/test_as_user.py", *_SELECTED),
            "tests/contract",
        ],
        env={
            GIVEN: install.python,
            "HYPOTHESIS_STORAGE_DIRECTORY": str(ordinary_user.home / "hypothesis"),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        cwd=copy,
        timeout_s=_PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
