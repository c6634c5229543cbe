"""A session's mode and policy are what its log said last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.errors import ConfigError
from bashd.core.model import Mode
from bashd.tools.agent import Agent
from bashd.tools.session import (
    LoggedSession,
    MemoryLog,
    fold_approval_policy,
    fold_mode,
    mode_event,
    policy_event,
)
from bashd.tools.toolset import Toolset
from tests.support.scripted_executor import ScriptedExecutor

modes = st.none() | st.sampled_from(Mode)


@given(st.lists(modes))
def test_the_last_switch_counts(switches: list[Mode | None]) -> None:
    events = [event for mode in switches for event in (mode_event(mode), {"type": "x"})]
    assert fold_mode(events) is (switches[-1] if switches else None)


def test_the_last_policy_counts() -> None:
    assert fold_approval_policy([]) is None
    events = [policy_event("never"), policy_event("ask"), mode_event(None)]
    assert fold_approval_policy(events) == "ask"


def test_an_unknown_mode_in_a_log_is_an_error_not_a_guess() -> None:
    with pytest.raises(ConfigError, match="sandbox mode 'root'"):
        fold_mode([{"type": "bash/sandbox-mode", "mode": "root"}])


@pytest.mark.anyio
async def test_the_stated_mode_and_its_change() -> None:
    toolset = Toolset(prompt_states_mode=True)
    toolset.mount(ScriptedExecutor(sandbox_mode=Mode.READ_ONLY))
    log = MemoryLog()
    agent = Agent("s", session=LoggedSession(log))

    async def stated() -> str:
        sections = await toolset.prompt_sections(agent)
        assert [s.name for s in sections] == ["tool:bash", "env:bash-sandbox"]
        assert sections[1].order == 110
        return sections[1].text

    assert await stated() == "Bash commands run in read-only mode."
    assert await stated() == "Bash commands run in read-only mode."
    await log.append(mode_event(Mode.WORKSPACE_WRITE))
    assert await stated() == (
        "Bash commands run in workspace-write mode.\n"
        "The mode changed from read-only to workspace-write since the last call."
    )


@pytest.mark.anyio
async def test_a_session_without_approvals_says_so() -> None:
    toolset = Toolset()
    toolset.mount(ScriptedExecutor(sandbox_mode=Mode.READ_ONLY))
    agent = Agent("s", session=LoggedSession(MemoryLog([policy_event("never")])))
    text = (await toolset.prompt_sections(agent))[-1].text
    assert text.startswith("Approval prompts are disabled in this session")
    assert "sandbox_permissions" in text
