"""The figures of a run as one picture."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.figures import OURS, WORKS, Findings, Setting

if TYPE_CHECKING:
    from tests.benchmarks.stats import Summary

_OURS_COLOUR, _THEIR_COLOUR = "#1b6ca8", "#b8b8b8"
_BARS = ("warm", "paced", "cold", "cli", "mcp", "output")
_COLUMNS = 4


def draw(findings: Findings, path: Path) -> None:
    """Write a PNG with a bar chart for each comparison and each curve.

    Raises:
        ImportError: matplotlib is not installed.
    """
    # By name: only who draws has it, and the checks run with it and without.
    importlib.import_module("matplotlib").use("Agg")
    plt = importlib.import_module("matplotlib.pyplot")

    panels = [key for key in _BARS if findings.settings(key)]
    if any(findings.settings(key) for key in _rates()):
        panels.append("rates")
    panels += [k for k, work in WORKS.items() if work.grows and findings.settings(k)]
    if not panels:
        return
    rows = -(-len(panels) // _COLUMNS)
    figure, axes = plt.subplots(
        rows, _COLUMNS, figsize=(5 * _COLUMNS, 3.6 * rows), squeeze=False
    )
    for axis, key in zip(axes.flat, panels, strict=False):
        if key == "rates":
            _draw_rates(axis, findings)
        elif WORKS[key].grows:
            _draw_curve(axis, findings, key)
        else:
            _draw_bars(axis, findings, key)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _rates() -> list[str]:
    return [key for key in WORKS if key.startswith("rate-")]


def _draw_bars(axis: Any, findings: Findings, key: str) -> None:
    # One setting: the tables have all, and the shapes are alike.
    setting = findings.settings(key)[-1]
    found = [f for f in findings.figures if (f.work, f.setting) == (key, setting)]
    names = [figure.contender for figure in found]
    axis.barh(
        names,
        [figure.summary.median for figure in found],
        xerr=_errors([figure.summary for figure in found]),
        color=[_colour(name) for name in names],
    )
    axis.invert_yaxis()
    if WORKS[key].unit == "ms":
        axis.set_xscale("log")
    axis.set_xlabel(WORKS[key].unit)
    axis.set_title(_title(key, setting), fontsize=8)


def _draw_rates(axis: Any, findings: Findings) -> None:
    keys = [key for key in _rates() if findings.settings(key)]
    setting = findings.settings(keys[0])[-1]
    for name in (OURS, "bwrap"):
        summaries = [findings.one(key, setting, name) for key in keys]
        pairs = [(k, s) for k, s in zip(keys, summaries, strict=True) if s is not None]
        axis.errorbar(
            [int(key.removeprefix("rate-")) for key, _ in pairs],
            [summary.median for _, summary in pairs],
            yerr=_errors([summary for _, summary in pairs]),
            marker="o",
            color=_colour(name),
            label=name,
        )
    axis.set_xscale("log", base=2)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("clients")
    axis.set_ylabel("commands per second")
    axis.set_title(f"throughput, back to back ({setting})", fontsize=8)
    axis.legend()


def _draw_curve(axis: Any, findings: Findings, key: str) -> None:
    setting = findings.settings(key)[-1]
    for name in (OURS, "bwrap"):
        found = findings.at(key, setting, name)
        axis.errorbar(
            [figure.at for figure in found],
            [figure.summary.median for figure in found],
            yerr=_errors([figure.summary for figure in found]),
            marker="o",
            color=_colour(name),
            label=name,
        )
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_xlabel(WORKS[key].counts)
    axis.set_ylabel("ms")
    axis.set_title(_title(key, setting), fontsize=8)
    axis.legend()


def _errors(summaries: list[Summary]) -> list[list[float]]:
    """Return the distances from the median to the quartiles."""
    return [
        [summary.median - summary.low for summary in summaries],
        [summary.high - summary.median for summary in summaries],
    ]


def _colour(name: str) -> str:
    return _OURS_COLOUR if name.startswith(OURS) else _THEIR_COLOUR


def _title(key: str, setting: Setting) -> str:
    title = WORKS[key].title.replace("`", "")
    middle = title.find(", ", len(title) // 2 - 8)
    if middle > 0:
        title = f"{title[: middle + 1]}\n{title[middle + 2 :]}"
    return f"{title}\n({setting})"
