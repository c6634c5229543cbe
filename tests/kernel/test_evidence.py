"""The reader of the kernel's records by itself, where the kernel makes it wait."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
import trio

from bashd.daemon.audit_delivery import Deliverer
from bashd.daemon.audit_stream import StatusSocket
from bashd.daemon.evidence import Evidence
from bashd.launcher.kernel import landlock_abi

if TYPE_CHECKING:
    from tests.support.audit import Audit

TURN_S = 0.01
SLOWEST_TURN_S = 0.3
"""Of a busy machine; a loop that waits for the kernel takes as long as that does."""
COMMANDS = 3


@pytest.mark.trio
async def test_a_kernel_that_lets_one_wait_holds_up_no_other_command(
    audit: Audit, monkeypatch: pytest.MonkeyPatch
):
    assert audit.get()["enabled"]
    release = threading.Event()
    waiting: list[int] = []

    def ask(_status: StatusSocket) -> int:
        waiting.append(1)
        release.wait(30)
        return 0

    # So that there is reason to ask.
    monkeypatch.setattr(Deliverer, "is_idle", lambda _deliverer: None)
    monkeypatch.setattr(StatusSocket, "ask", ask)
    evidence = Evidence(landlock_abi())
    turns: list[float] = []

    async def go_on() -> None:
        while True:
            began = trio.current_time()
            await trio.sleep(TURN_S)
            turns.append(trio.current_time() - began)

    async def settle() -> None:
        pidfd = os.pidfd_open(os.getpid())
        try:
            trail = evidence.begin(pidfd, covered=True)
        finally:
            os.close(pidfd)
        assert trail is not None
        await evidence.settle(trail)
        assert trail.lost, "what the kernel still holds may be a refusal"

    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(evidence.run)
            nursery.start_soon(go_on)
            async with trio.open_nursery() as commands:
                for _ in range(COMMANDS):
                    commands.start_soon(settle)
            nursery.cancel_scope.cancel()
    finally:
        release.set()
    assert len(waiting) == 1, "one thread at most"
    assert max(turns) < SLOWEST_TURN_S
