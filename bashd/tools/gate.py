"""The escalation gate: a wider mode for exactly one call, or a reason why not.

Runs before anything executes. Every way but an explicit ``allowed-once`` ends in an
error with its own text. Nothing is stored, so the same request asks again next time.
Whether the command was really denied before is not checked: that is the model's
discipline and the person's judgement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bashd.tools.consent import Caller, Question, require_consent
from bashd.tools.errors import refused

if TYPE_CHECKING:
    from bashd.core.model import Mode
    from bashd.tools.validation import BashArgs


async def grant_for(
    args: BashArgs, caller: Caller, default: Mode | None
) -> Mode | None:
    """Return the granted mode, or None for a call that asked for none.

    Args:
        args: The checked arguments.
        caller: Who calls, and whom to ask.
        default: The executor's default mode; None when it never confines.

    Raises:
        ToolError: Not available, not wider, or not allowed.
    """
    if args.unadvertised:
        raise refused(
            "sandbox_permissions is not available in this composition "
            "(no sandboxing executor to escalate)"
        )
    if args.mode is None or default is None:
        return None
    agent = caller.agent
    current = await agent.session.effective_mode(default) if agent else default
    if not args.mode.is_wider_than(current):
        raise refused(
            f'sandbox escalation to "{args.mode}" is not strictly wider than this '
            f'call\'s current "{current}" mode'
        )
    await require_consent(_question(args.mode, args.justification), caller)
    return args.mode


def _question(mode: Mode, justification: str) -> Question:
    return Question(
        reason=f"escalate sandbox to {mode}: {justification}",
        subject=f'sandbox escalation to "{mode}"',
        rejected=f'the user rejected escalating this command to "{mode}"',
        cancelled=f'approval for escalating to "{mode}" was cancelled',
    )
