r"""Makes text from a command safe to show: nothing in it can move a cursor.

Control characters, escape sequences, bidirectional overrides and lone surrogates
become visible ``\xNN``, ``\uNNNN`` or ``\UNNNNNNNN``. What a command prints to the
model is not passed through here; what a person is asked to approve is.
"""

from __future__ import annotations


def visible_line(text: str) -> str:
    """Return *text* on one line with everything unprintable spelled out."""
    return "".join(char if char.isprintable() else _spelled(char) for char in text)


def visible_block(text: str, *, indent: str = "    ") -> str:
    """Return *text* with its own lines, each indented, the rest as `visible_line`.

    The indent keeps a line of *text* from looking like a line of the frame.
    """
    return "\n".join(indent + visible_line(line) for line in text.split("\n"))


def _spelled(char: str) -> str:
    # Python's own spelling, with the surrogates it cannot print spelled alike.
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
