"""What bashd itself has to say: failures, objects and lines on our own streams."""

from __future__ import annotations

import json
import os

from bashd.cli.outcome import FAILURE_STATUS, failure_status

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from typing import Final

    from bashd.core.errors import BashdError

_STDOUT: Final = 1
_STDERR: Final = 2


def report_failure(error: BashdError, *, as_json: bool) -> int:
    """Tell the caller about *error*; returns the exit status that goes with it.

    With *as_json* it is the one object on stdout, otherwise a line on stderr.
    """
    if as_json:
        print_json({"error": {"code": error.code, "message": error.message}})
    else:
        from bashd.cli.terminal import visible  # noqa: PLC0415 - only for failures

        _write(_STDERR, f"bashd: {visible(error.message)}\n")
    return failure_status(error)


def print_json(value: object) -> None:
    """Print *value* on one line; its escapes keep any terminal safe."""
    _write(_STDOUT, json.dumps(value) + "\n")


def print_text(text: str) -> None:
    """Print *text*, which ends in a newline unless it is empty, as it is."""
    _write(_STDOUT, text)


def _write(fd: int, text: str) -> None:
    # Not through sys.stdout: that would complain at exit about a reader that is gone,
    # and about an encoding that lacks a character.
    rest = memoryview(text.encode(errors="backslashreplace"))
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except BrokenPipeError:
        return
    except OSError as error:
        if fd == _STDERR:
            return
        _write(_STDERR, f"bashd: cannot write to stdout: {error.strerror}\n")
        raise SystemExit(FAILURE_STATUS) from None
