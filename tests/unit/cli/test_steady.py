"""Calls that only read come back after a lost connection to another machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from bashd.cli import steady
from bashd.cli.steady import SteadyLink
from bashd.core.errors import ConnectError, UnknownTaskError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bashd.client.link import Link


class ScriptedLink:
    """Answers, or is lost; knows another machine unless it is told otherwise."""

    def __init__(
        self, outcome: object, *, greeted: bool = True, far: bool = True
    ) -> None:
        self.outcome = outcome
        self.hello = {} if greeted else None
        self.far = object() if far else None
        self.closed = False

    def call(self, method: str, params: object) -> object:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def close(self) -> None:
        self.closed = True


LOST = ConnectError("lost")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(steady, "_LONGEST_PAUSE_S", 0.001)


def call(*links: ScriptedLink) -> Any:
    rest: Iterator[ScriptedLink] = iter(links)
    return SteadyLink(lambda: cast("Link", next(rest))).call("task.wait", {})


def test_a_lost_connection_is_made_anew_and_the_question_asked_again() -> None:
    lost = [ScriptedLink(LOST), ScriptedLink(LOST, greeted=False), ScriptedLink(LOST)]
    assert call(*lost, ScriptedLink(7)) == 7
    assert all(link.closed for link in lost)


def test_the_first_try_fails_at_once() -> None:
    with pytest.raises(ConnectError):
        call(ScriptedLink(LOST, greeted=False))


def test_a_daemon_here_is_not_waited_for() -> None:
    with pytest.raises(ConnectError):
        call(ScriptedLink(LOST, far=False))


def test_an_answer_that_is_an_error_is_an_answer() -> None:
    with pytest.raises(UnknownTaskError):
        call(ScriptedLink(UnknownTaskError("no")))


def test_it_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "_PATIENCE_S", 0.01)
    endless = [ScriptedLink(LOST, greeted=n == 0) for n in range(1000)]
    with pytest.raises(ConnectError):
        call(*endless)
