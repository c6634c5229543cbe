"""What a system prompt says about the tools.

By default no section states the sandbox mode: a model told of a narrow mode refuses
before it tries, while the denial marker names the mode exactly when it matters. One
switch adds the section for whoever prefers it stated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bashd.core.model import Mode

APPROVALS_DISABLED: Final = (
    "Approval prompts are disabled in this session: a sandbox denial is final. Do not "
    "set `sandbox_permissions`."
)


@dataclass(frozen=True, slots=True)
class PromptSection:
    """One section of a system prompt."""

    name: str
    order: int
    """Sections are put in ascending order."""
    text: str


BASH_SECTION: Final = PromptSection(
    "tool:bash",
    105,
    "Check the `[exit code: N]` marker on every bash result and look into failures "
    "before moving on.",
)


def mode_section(mode: Mode, previous: Mode | None) -> PromptSection:
    """Return the section that states the effective *mode*.

    Args:
        mode: In force for the next call.
        previous: What the section said last time; None for the first time.
    """
    text = f"Bash commands run in {mode} mode."
    if previous is not None and previous is not mode:
        text += f"\nThe mode changed from {previous} to {mode} since the last call."
    return PromptSection("env:bash-sandbox", 110, text)


APPROVALS_SECTION: Final = PromptSection("env:bash-approvals", 115, APPROVALS_DISABLED)
"""Only for sessions whose approval policy is ``never``."""
