"""The report of a run: JSON for programs, Markdown for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks.budgets import BUDGETS, Budget, Verdict
from tests.benchmarks.figures import OURS, WORKS, Figure, Findings, Work
from tests.benchmarks.peers import NOTES

_BEGIN, _END = "<!-- figures: begin -->", "<!-- figures: end -->"


@dataclass(frozen=True, slots=True)
class Report:
    """A finished run."""

    command: str
    machine: dict[str, str]
    versions: dict[str, str]
    """Of the peers."""
    configurations: dict[str, str]
    """Of the peers, by setting and name, as a reader would type them."""
    findings: Findings
    verdicts: list[Verdict]
    missing: list[Budget]

    def write(self, folder: Path) -> None:
        """Write ``report.md``, ``report.json`` and ``summary.md``."""
        (folder / "report.md").write_text(self.markdown())
        (folder / "report.json").write_text(json.dumps(self.as_json(), indent=1) + "\n")
        (folder / "summary.md").write_text(self.summary())

    def as_json(self) -> dict[str, object]:
        """Return everything as plain values."""
        return {
            "command": self.command,
            "machine": self.machine,
            "versions": self.versions,
            "configurations": self.configurations,
            "figures": [asdict(figure) for figure in self.findings.figures],
            "absences": [asdict(absence) for absence in self.findings.absences],
            "budgets": [
                asdict(verdict) | {"kept": verdict.kept} for verdict in self.verdicts
            ],
            "unmeasured": [asdict(budget) for budget in self.missing],
        }

    def markdown(self) -> str:
        """Return the whole report."""
        parts = [
            "# bashd's speed",
            f"Made by `{self.command}`. Every figure is a median, with the first and"
            " the third quartile in brackets; contenders took turns in random order in"
            " one session, up to 20 calls in a turn, and x is the ratio of two medians of"
            " the same turns. Every caller is the same small Python program, run as the"
            " account it measures for.",
            _table(("machine", ""), self.machine.items()),
            "## Budgets",
            _budget_table(self.verdicts),
            *([_missing(self.missing)] if self.missing else []),
            *_work_sections(self.findings),
            *_growth_sections(self.findings),
            "## What has no figure",
            _absences(self.findings),
            *self._peer_sections(),
        ]
        return "\n\n".join(parts) + "\n"

    def _peer_sections(self) -> Iterable[str]:
        yield "## How the others were called"
        rows = [(name, self._version(name), note) for name, note in NOTES.items()]
        yield _table(("peer", "version", "what it is"), rows)
        for title, shown in self.configurations.items():
            yield f"{title}:\n\n```sh\n{shown}\n```"

    def _version(self, peer: str) -> str:
        own = {"bash": "bash", "bwrap": "bubblewrap"}
        if peer in own:
            return self.machine[own[peer]]
        return self.versions.get(peer, "not in this run")

    def summary(self) -> str:
        """Return the few lines that a README has room for."""
        rows: list[tuple[str, ...]] = []
        for budget in BUDGETS:
            of_it = [v for v in self.verdicts if v.budget == budget]
            if of_it:
                shown = _range([v.value for v in of_it], budget)
                if not all(v.kept for v in of_it):
                    shown = f"**{shown}**"
                rows.append((budget.title, shown, _bound(budget)))
        heads = ("measured", "worst … best setting", "budget")
        parts = [_table(heads, rows), *self._peer_summary(), f"{self._described()}.\n"]
        return "\n\n".join(parts)

    def _peer_summary(self) -> Iterable[str]:
        settings = self.findings.settings("warm")
        if not settings:
            return
        setting, works = settings[-1], ("warm", "paced", "cli")
        names = [f.contender for f in self.findings.figures if f.setting == setting]
        rows: list[list[str]] = []
        for name in dict.fromkeys(names):
            found = [self.findings.at(work, setting, name) for work in works]
            if found[0]:
                rows.append([name, *(spread(one[0]) if one else "" for one in found)])
        heads = ("who", "back to back", "10 ms apart", "whole process")
        yield f"A confined `true` in ms, median and quartiles ({setting}):"
        yield _table(heads, rows)

    def _described(self) -> str:
        names = ("processor", "memory", "kernel", "system", "bubblewrap")
        facts = [self.machine[name] for name in names]
        facts.append(f"Python {self.machine['python']}")
        facts.append(f"load {self.machine['load at the start'].split()[0]}")
        facts.append(f"{self.machine['priority']} priority")
        return f"{', '.join(facts)}; {self.machine['when']}"


def refresh(readme: Path, summary: str) -> None:
    """Put a summary between the two marks of a README.

    Raises:
        ValueError: It has no such marks.
    """
    before, begin, rest = readme.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{readme} has no {_BEGIN} before {_END}")
    readme.write_text(f"{before}{begin}\n\n{summary}\n{end}{after}")


def _work_sections(findings: Findings) -> Iterable[str]:
    yield "## Figures"
    for key, work in WORKS.items():
        settings = findings.settings(key)
        if work.grows or not settings:
            continue
        rows = [
            _figure_row(findings, figure)
            for figure in findings.figures
            if figure.work == key
        ]
        heads = ["setting", "who", work.unit, *(f"x {name}" for name in work.against)]
        if work.counts:
            heads.append(work.counts)
        yield f"{_heading(work)}\n\n{_table(heads, rows)}"


def _heading(work: Work) -> str:
    return f"**{work.title[0].upper()}{work.title[1:]}.** {work.about}".rstrip()


def _figure_row(findings: Findings, figure: Figure) -> list[str]:
    work = WORKS[figure.work]
    row = [str(figure.setting), figure.contender, spread(figure)]
    for name in work.against:
        other = findings.one(figure.work, figure.setting, name)
        if other is None or not other.median or name == figure.contender:
            row.append("")
        else:
            row.append(f"{figure.summary.median / other.median:.2f}")
    if work.counts:
        row.append("" if figure.at is None else f"{figure.at:,.0f}")
    return row


def _growth_sections(findings: Findings) -> Iterable[str]:
    yield "## Growth"
    for key, work in WORKS.items():
        if not work.grows:
            continue
        for setting in findings.settings(key):
            ours = findings.at(key, setting, OURS)
            theirs = findings.at(key, setting, "bwrap")
            rows = [
                (
                    f"{one.at:,.0f}",
                    spread(one),
                    spread(other),
                    f"{one.summary.median / other.summary.median:.2f}",
                )
                for one, other in zip(ours, theirs, strict=False)
            ]
            heads = (work.counts, "bashd, ms", "bwrap, ms", "x bwrap")
            yield f"{_heading(work)} {setting}.\n\n{_table(heads, rows)}"


def spread(figure: Figure) -> str:
    """Return a median with its quartiles, or the one value there is."""
    summary = figure.summary
    if summary.count == 1:
        return _number(summary.median)
    low, high = _number(summary.low), _number(summary.high)
    return f"{_number(summary.median)} [{low}-{high}]"


def _number(value: float) -> str:
    value = round(value, 2) + 0.0  # no minus before nothing
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _budget_table(verdicts: Sequence[Verdict]) -> str:
    rows = [
        (
            verdict.budget.title,
            str(verdict.setting),
            f"{_number(verdict.value)} {verdict.budget.unit}",
            _bound(verdict.budget),
            "kept" if verdict.kept else "**over**",
            verdict.budget.source,
        )
        for verdict in verdicts
    ]
    return _table(("what", "setting", "measured", "budget", "", "source"), rows)


def _absences(findings: Findings) -> str:
    if not findings.absences:
        return "Nothing."
    rows = [(absence.what, _one_line(absence.reason)) for absence in findings.absences]
    return _table(("what", "why"), rows)


def _missing(budgets: Sequence[Budget]) -> str:
    lines = [f"- {budget.title} ({_bound(budget)})" for budget in budgets]
    return "\n".join(["Not measured in this run:", "", *lines])


def _bound(budget: Budget) -> str:
    sign = "≥" if budget.at_least else "≤"
    aim = "" if budget.aim is None else f", aim {budget.aim:g}"
    return f"{sign} {budget.bound:g} {budget.unit}{aim}"


def _range(values: Sequence[float], budget: Budget) -> str:
    worst, best = max(values), min(values)
    if budget.at_least:
        worst, best = best, worst
    shown = list(dict.fromkeys([_number(worst), _number(best)]))
    return f"{' … '.join(shown)} {budget.unit}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300].replace("|", "\\|")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
