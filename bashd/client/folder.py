"""The caller's folder, as a path that the daemon understands."""

from __future__ import annotations

import os

from bashd.core.errors import InvalidParamsError

FAR_FOLDER = "."
"""The folder on another machine in which ssh logs in: `dial-stdio` completes it."""


def absolute(path: str | None = None) -> str:
    """Return *path* from the root; None is the current folder.

    Not normalised: ``link/..`` keeps its meaning, which only the file system knows.

    Raises:
        InvalidParamsError: The path is relative and there is no current folder.
    """
    if path is not None and path.startswith("/"):
        return path
    try:
        here = os.getcwd()  # noqa: PTH109 - the command line loads no pathlib
    except FileNotFoundError:
        raise InvalidParamsError(
            "the current folder no longer exists; name another one with --cwd"
        ) from None
    return here if path is None else f"{here}/{path}"
