"""The ``bashd`` command.

``bashd run`` is called in a loop, and with ``--host`` so is the far end's ``dial-stdio``:
they go their own way here, build no parser and load nothing that they do not use. All else is `bashd.cli.commands`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    try:
        if words[:1] == ["run"]:
            return _run(words[1:])
        if words[:1] == ["dial-stdio"]:
            return _dial(words)
        return _dispatch(words)
    except KeyboardInterrupt:
        return 130


def _run(words: Sequence[str]) -> int:
    from bashd.cli.run_args import HelpWanted  # noqa: PLC0415
    from bashd.cli.run_cmd import run_words  # noqa: PLC0415

    try:
        return run_words(words)
    except HelpWanted:
        return _dispatch(["run", "--help"])


def _dial(words: Sequence[str]) -> int:
    from bashd.cli.dial_cmd import run_words  # noqa: PLC0415

    status = run_words(words[1:])
    return _dispatch(words) if status is None else status


def _dispatch(words: Sequence[str]) -> int:
    from bashd.cli.commands import dispatch  # noqa: PLC0415

    return dispatch(words)
