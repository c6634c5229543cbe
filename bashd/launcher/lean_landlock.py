"""In a cell, the front door of the package ``landlock``: all that its plumbing needs.

The package's own brings dataclasses and with them half of the standard library: a third
of a cell's start, for a class that nobody uses there.
"""

from __future__ import annotations


class SyscallError(OSError):
    """One of Landlock's calls was refused; *reason* says why in words."""

    def __init__(self, *args: object, reason: str | None = None) -> None:
        super().__init__(*args)
        self.reason = reason
