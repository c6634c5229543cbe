"""How a question about a command is put to a person, wherever that person sits.

The command is shown as it is, escaped, so that nothing in it can look like part of the
question. Dialogs of MCP clients and the terminal of ``bashd approvals`` show the same.
"""

from __future__ import annotations

from typing import Final

from bashd.tools.escape import visible_block, visible_line

SHOWN_CHARS: Final = 16_000
"""Characters of a command that are shown; no dialog is read further than that."""


def question_text(
    command: str, *, workdir: str | None, mode: str | None, reason: str
) -> str:
    """Return the question, with nothing unprintable in it.

    Args:
        command: Byte for byte what will run.
        workdir: Where; None where only the executor knows.
        mode: The wider mode asked for; None when a rule asks about a plain call.
        reason: What the model or the rule says.
    """
    asked = f"Run this command in {visible_line(mode)} mode?" if mode else None
    lines = [
        asked or "Run this command?",
        "",
        _shown(command),
        "",
        f"Directory: {visible_line(workdir or '(default)')}",
        f"Reason: {visible_line(reason)}",
    ]
    return "\n".join(lines)


def _shown(command: str) -> str:
    if len(command) <= SHOWN_CHARS:
        return visible_block(command)
    hidden = len(command) - SHOWN_CHARS
    return (
        visible_block(command[:SHOWN_CHARS])
        + f"\n({hidden} more characters of the command are NOT shown)"
    )
