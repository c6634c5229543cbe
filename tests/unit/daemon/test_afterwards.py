"""What nobody waits for comes later, in order, and always."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from bashd.daemon.afterwards import afterwards


@pytest.mark.trio
async def test_it_is_done_after_the_turn_of_who_asked_and_in_order():
    done: list[int] = []
    afterwards(done.append, 1)
    afterwards(done.append, 2)
    assert done == []
    with trio.fail_after(10):
        await trio.testing.wait_all_tasks_blocked()
    assert done == [1, 2]
    afterwards(done.append, 3)
    assert done == [1, 2]
    with trio.fail_after(10):
        await trio.testing.wait_all_tasks_blocked()
    assert done == [1, 2, 3]


@pytest.mark.trio
async def test_work_may_bring_more_work():
    done: list[str] = []
    afterwards(lambda: (done.append("first"), afterwards(done.append, "more")))
    with trio.fail_after(10):
        await trio.testing.wait_all_tasks_blocked()
    assert done == ["first", "more"]


def test_what_is_left_at_the_end_of_the_loop_is_done():
    done: list[str] = []

    async def main() -> None:
        afterwards(done.append, "early")
        await trio.lowlevel.checkpoint()
        afterwards(done.append, "late")

    trio.run(main)
    assert done == ["early", "late"]
    # Each loop has its own.
    trio.run(main)
    assert done == ["early", "late"] * 2
