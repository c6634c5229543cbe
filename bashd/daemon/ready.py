"""A command's environment, composed and encoded; kept by a session for plain calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ready:
    """A command's environment as the spare wants it."""

    entries: tuple[bytes, ...]
    """``NAME=value``, all but the run's own marker."""
    removed: tuple[str, ...]
    """Names that the scrub or the policy took."""
