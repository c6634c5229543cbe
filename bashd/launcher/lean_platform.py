"""In a cell, the module ``platform``: what ``landlock`` asks it when a call fails."""

from __future__ import annotations

import os


def system() -> str:
    """Return the kernel's name."""
    return os.uname().sysname


def release() -> str:
    """Return the kernel's version."""
    return os.uname().release
