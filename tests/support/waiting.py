"""Waiting for what happens at the other end, which tells nobody."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


async def until(condition: Callable[[], Awaitable[T]]) -> T:
    """Wait until *condition* gives something true, and return that.

    Without a limit of its own: what never comes costs the test its timeout.
    """
    while not (found := await condition()):  # noqa: ASYNC110 - nothing else to wait for
        await anyio.sleep(0.01)
    return found


def eventually(condition: Callable[[], Any], what: str, within_s: float = 60) -> Any:
    """Wait for *condition* to give something true; return that.

    Raises:
        AssertionError: It does not, in time.
    """
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)
    return found
