"""The README's examples run as they stand."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import bashd.client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from bashd.client import Client
    from tests.conftest import DaemonFactory
    from tests.support.accounts import Account

README = Path(__file__).parents[1] / "README.md"
NEEDS_WIDER = {
    "command": "echo by the agent > f",
    "description": "Write a file",
    "sandbox_permissions": "workspace-write",
    "justification": "The user asked for the file.",
}


def example(defining: str) -> str:
    """Return the Python block of the README that defines something."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (found,) = (block for block in blocks if f"def {defining}(" in block)
    return found


@dataclass
class Model:
    """Makes three calls and remembers what it reads."""

    read: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    notices: list[str] = field(default_factory=list[str])
    told: anyio.Event = field(default_factory=anyio.Event)
    offered: Any = None
    prompt: Any = None

    def begin(self, schemas: object, sections: object) -> None:
        self.offered, self.prompt = schemas, sections

    def add_notice(self, text: str, _source: dict[str, str]) -> None:
        self.notices.append(text)
        self.told.set()

    async def calls(self) -> AsyncIterator[Any]:
        background = {"command": "true", "description": "d", "run_in_background": True}
        for number, arguments in enumerate([NEEDS_WIDER, background]):
            yield SimpleNamespace(id=f"call-{number}", name="bash", arguments=arguments)
        await self.told.wait()
        yield SimpleNamespace(
            id="call-2", name="bash", arguments={"command": "cat f", "description": "d"}
        )

    async def add_result(self, _id: str, text: str, *, is_error: bool) -> None:
        self.read.append((text, is_error))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_agent_loop(
    make_daemon: DaemonFactory, root_account: Account, backend: str
) -> None:
    daemon = make_daemon(account=root_account)
    folder = daemon.make_workspace()
    asked: list[Any] = []

    def answer(request: Any) -> str:
        asked.append((request.call_id, request.reason))
        return "allowed-once"

    @asynccontextmanager
    async def connect(cwd: str) -> AsyncGenerator[Client]:
        assert cwd == "."
        own = bashd.client.connect(str(daemon.socket), cwd=str(folder))
        async with own as client:
            yield client

    async def body() -> Model:
        model, names = Model(), {}
        exec(compile(example("agent_loop"), str(README), "exec"), names)
        names["connect"] = connect
        await names["agent_loop"](model, SimpleNamespace(answer=answer))
        return model

    model = anyio.run(body, backend=backend)
    assert next(iter(model.offered)).name == "bash"
    assert "[exit code: N]" in model.prompt[0].text
    assert model.read == [
        ("(no output)", False),
        ("started background task bash-1", False),
        ("by the agent\n", False),
    ]
    assert len(model.notices) == 1
    assert asked == [
        ("call-0", "escalate sandbox to workspace-write: The user asked for the file.")
    ]
