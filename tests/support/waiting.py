"""Waiting for what happens at the other end, which tells nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

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
