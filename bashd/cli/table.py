"""Aligned columns for people; what a command chose to be named cannot disturb them."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from typing import TYPE_CHECKING

from bashd.cli.terminal import visible_line

if TYPE_CHECKING:
    from collections.abc import Sequence

_GAP = "  "
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_MIN_LAST_CELLS = 10
_EXACT_S = 10
_UNITS_S = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
_KIBI = 1024
_POWERS = "KMGT"


def render_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    bold: bool = False,
) -> str:
    """Return *rows* under *header*, each cell on one line.

    Args:
        header: Names of the columns.
        rows: As many cells each.
        width: Terminal cells a line may take; the last column is cut to it.
        bold: Whether to stress the header.
    """
    lines = [[visible_line(cell) for cell in row] for row in [header, *rows]]
    widths = [max(map(cells, column)) for column in zip(*lines, strict=True)][:-1]
    left = sum(widths) + len(_GAP) * len(widths)
    rendered = [
        _GAP.join(
            [
                *(_pad(cell, size) for cell, size in zip(line, widths, strict=False)),
                _cut(line[-1], None if width is None else width - left),
            ]
        ).rstrip()
        for line in lines
    ]
    if bold:
        rendered[0] = f"{_BOLD}{rendered[0]}{_PLAIN}"
    return "".join(f"{line}\n" for line in rendered)


def table_for_stdout(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table as our stdout should have it: cut and stressed on a terminal."""
    if not sys.stdout.isatty():
        return render_table(header, rows)
    # Source: no-color.org, set and not empty.
    bold = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return render_table(
        header, rows, width=shutil.get_terminal_size().columns, bold=bold
    )


def cells(text: str) -> int:
    """Return how many terminal cells *text* takes."""
    return sum(_cells_of(char) for char in text)


def _cells_of(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _pad(text: str, size: int) -> str:
    return text + " " * (size - cells(text))


def _cut(text: str, size: int | None) -> str:
    if size is None or cells(text) <= max(size, _MIN_LAST_CELLS):
        return text
    kept, taken = "", 0
    for char in text:
        taken += _cells_of(char)
        if taken >= max(size, _MIN_LAST_CELLS):
            break
        kept += char
    return kept + "\N{HORIZONTAL ELLIPSIS}"


def duration(seconds: float) -> str:
    """Return a length of time in the largest two units that matter."""
    if seconds < _EXACT_S:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for size, unit, smaller_size, smaller in _UNITS_S:
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // smaller_size:02}{smaller}"
    return f"{whole}s"


def amount(count: int) -> str:
    """Return a number of bytes with a binary unit."""
    if count < _KIBI:
        return f"{count}B"
    power = min((count.bit_length() - 1) // 10, len(_POWERS))
    return f"{count / _KIBI**power:.1f}{_POWERS[power - 1]}"
