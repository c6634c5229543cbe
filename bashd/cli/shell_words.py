"""What a program says to the shell it calls: bash's own grammar of options, and no more.

Nothing is interpreted that bash can interpret itself: the words go to a bash in the
cell as they are. Only three things have to be known here: which word is the command,
which is the script, and whether there is nothing else. Source: bash(1), OPTIONS.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

_WITH_FILE: Final = frozenset({"--rcfile", "--init-file"})
"""Long options that take the next word."""


class ShellWords:
    """The words after ``bashd-sh``.

    Attributes:
        words: All of them.
        command: The word after ``-c``, or None.
        script: Path of a script, or None when it is a command or comes on stdin.
        is_plain: There is a command and nothing besides.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        letters, start = _options(self.words)
        operands = self.words[start:]
        self._options, self._operands = self.words[:start], operands
        first = operands[0] if operands else None
        self.command = first if "c" in letters else None
        self.script = None if letters & {"c", "s"} else first
        self.is_plain = (
            self.words[:1] == ["-c"] and len(self.words) == len(operands) + 1 == 2  # noqa: PLR2004 - itself and its command
        )

    @property
    def around_text(self) -> tuple[list[str], list[str]]:
        """What stands before and after a text that is run instead of the script."""
        options, end = self._options, len(self._options)
        if options[-1:] in (["-"], ["--"]):
            end -= 1
        return [*options[:end], "-c", *options[end:]], self._operands


def _options(words: list[str]) -> tuple[set[str], int]:
    """Return the letters that are switched on, and where the operands begin."""
    letters: set[str] = set()
    at = 0
    while at < len(words):
        word = words[at]
        if word in {"-", "--"}:
            return letters, at + 1
        if word.startswith("--"):
            at += 2 if word in _WITH_FILE else 1
        elif len(word) > 1 and word[0] in "-+":
            given = word[1:]
            if word[0] == "-":
                letters |= set(given)
            # -o and -O each take a word of their own, also among others: -euo pipefail.
            at += 1 + given.count("o") + given.count("O")
        else:
            break
    return letters, min(at, len(words))
