"""Makes a skip visible: with ``BASHD_TEST_STRICT=1`` every skip is a failure.

A test that is skipped everywhere proves nothing and nobody notices. CI runs strict,
so that whatever a test needs has to be there; on a poor machine the same test says
why it cannot run and lets the others go on.

Soak tests and labs are *deselected* unless asked for: leaving them out is a choice, not
a machine that lacks something.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

STRICT = os.environ.get("BASHD_TEST_STRICT") == "1"
_ON_REQUEST = ("soak", "lab")
"""Markers; ``--run-soak`` and ``--run-lab`` ask for them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--run-soak`` and ``--run-lab``."""
    for name in _ON_REQUEST:
        text = f"also run the tests marked {name}"
        parser.addoption(f"--run-{name}", action="store_true", help=text)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave soak tests and labs out unless they were asked for."""
    for name in _ON_REQUEST:
        if config.getoption(f"--run-{name}"):
            continue
        left_out = [item for item in items if item.get_closest_marker(name)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker(name)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a test into its failure."""
    report = yield
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and BASHD_TEST_STRICT=1: {_reason(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole module into a collection error."""
    report = yield
    if STRICT and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, and BASHD_TEST_STRICT=1: {_reason(report)}"
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    # A skip's longrepr is (file, line, reason).
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    return str(report.longrepr)
