"""The daemon's queue of questions: who may answer, how often, and who hears of it."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from bashd.client.link import Link, result_of
from bashd.core.errors import (
    InvalidParamsError,
    LimitError,
    UnknownApprovalError,
    UnknownSessionError,
)
from tests.support.accounts import as_user, current_account, speaking_as
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import DaemonFactory
    from tests.support.accounts import Account
    from tests.support.daemons import RunningDaemon

    OpenLink = Callable[[], Link]

pytestmark = pytest.mark.slow

COMMAND = "rm -rf build\x00\n\ud800".encode("utf-8", "replace").decode()
WAIT_S = 1.0


@pytest.fixture
def speaker(identity: Account) -> Account:
    """Whose daemon it is, and who asks and answers."""
    return identity


@pytest.fixture
def daemon(make_daemon: DaemonFactory, speaker: Account) -> RunningDaemon:
    return make_daemon(account=speaker, settings={"approval": {"wait_s": 60}})


@pytest.fixture
def workspace(daemon: RunningDaemon) -> Path:
    return daemon.make_workspace()


@pytest.fixture
def open_link(
    daemon: RunningDaemon, workspace: Path, speaker: Account
) -> Iterator[OpenLink]:
    del workspace  # is made as whoever runs the tests
    with speaking_as(speaker), contextlib.ExitStack() as stack:

        def open_() -> Link:
            link = Link.reach(str(daemon.socket), autostart=False)
            stack.callback(link.close)
            return link

        yield open_


class Asker:
    """A client whose model wants something."""

    def __init__(self, link: Link, workspace: Path, **session: Any) -> None:
        self.link = link
        self.workspace = str(workspace)
        opened = link.call("session.open", {"cwd": self.workspace, **session})
        self.session_id: str = opened["session_id"]

    def ask(self, **facts: Any) -> int:
        params = {
            "session_id": self.session_id,
            "call_id": "c-1",
            "command": COMMAND,
            "reason": "escalate",
            "mode": "workspace-write",
            **facts,
        }
        return self.link.send("approval.ask", params)

    def outcome(self, request_id: int) -> str:
        return self.link.answer(request_id)["outcome"]


class Watcher:
    """Somebody who can be asked."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._heard: list[tuple[str, Any]] = []
        link.on_notification = lambda method, params: self._heard.append(
            (method, params)
        )
        self.waiting: list[Any] = link.call("approval.watch", {})["approvals"]

    def hear(self, method: str) -> Any:
        """Return the next notification, which must be a *method*."""
        while not self._heard:
            message = self.link.receive()
            self._heard.append((message["method"], message["params"]))
        name, params = self._heard.pop(0)
        assert name == method
        return params

    def asked(self) -> dict[str, Any]:
        return self.hear("approval.asked")["approval"]

    def settled(self) -> tuple[str, str]:
        params = self.hear("approval.settled")
        return params["approval_id"], params["outcome"]

    def decide(self, approval_id: str, outcome: str) -> None:
        params = {"approval_id": approval_id, "outcome": outcome}
        self.link.call("approval.decide", params)


@pytest.fixture
def asker(open_link: OpenLink, workspace: Path) -> Asker:
    return Asker(open_link(), workspace)


@pytest.fixture
def watcher(open_link: OpenLink) -> Watcher:
    return Watcher(open_link())


def test_with_nobody_watching_the_answer_comes_at_once(asker: Asker) -> None:
    assert asker.outcome(asker.ask()) == "unavailable"


def test_the_audit_log_has_the_question_and_who_answered_it(
    asker: Asker, watcher: Watcher, daemon: RunningDaemon
) -> None:
    request_id = asker.ask()
    approval_id = watcher.asked()["approval_id"]
    watcher.decide(approval_id, "rejected")
    assert asker.outcome(request_id) == "rejected"
    log = daemon.state_dir / "audit.jsonl"

    def entries() -> dict[str, Any]:
        lines = log.read_text().splitlines() if log.exists() else []
        return {entry["event"]: entry for entry in map(json.loads, lines)}

    wanted = {"approval.decide", "approval.ask"}
    # It is written a moment later, and then whole lines.
    eventually(lambda: wanted <= entries().keys(), "both entries")
    decided, asked = entries()["approval.decide"], entries()["approval.ask"]
    assert (decided["approval_id"], decided["outcome"]) == (approval_id, "rejected")
    assert (asked["session"], asked["outcome"]) == (asker.session_id, "rejected")
    assert (asked["command"], asked["mode"]) == (COMMAND, "workspace-write")
    assert {decided["uid"], asked["uid"]} == {daemon.caller.uid}


@pytest.mark.parametrize("outcome", ["allowed-once", "rejected"])
def test_a_question_says_all_there_is_to_know_and_is_answered_once(
    asker: Asker, watcher: Watcher, open_link: OpenLink, outcome: str
) -> None:
    second = Watcher(open_link())
    request_id = asker.ask()
    info = watcher.asked()
    assert {key: info[key] for key in ("command", "mode", "reason", "tool_name")} == {
        "command": COMMAND,
        "mode": "workspace-write",
        "reason": "escalate",
        "tool_name": "bash",
    }
    assert (info["session_id"], info["call_id"]) == (asker.session_id, "c-1")
    assert info["workdir"] == asker.workspace
    assert abs(info["asked_at"] - time.time()) < 60
    assert watcher.link.call("approval.list", {})["approvals"] == [info]
    watcher.decide(info["approval_id"], outcome)
    assert asker.outcome(request_id) == outcome
    assert second.asked() == info
    assert second.settled() == (info["approval_id"], outcome)
    with pytest.raises(UnknownApprovalError):
        second.decide(info["approval_id"], "allowed-once")
    assert watcher.link.call("approval.list", {})["approvals"] == []


def test_an_answer_is_for_one_question_and_the_same_is_asked_again(
    asker: Asker, watcher: Watcher
) -> None:
    first = asker.ask()
    watcher.decide(watcher.asked()["approval_id"], "allowed-once")
    assert asker.outcome(first) == "allowed-once"
    watcher.settled()
    asker.ask()
    assert watcher.asked()["command"] == COMMAND


def test_a_watcher_that_comes_later_is_told_what_waits(
    asker: Asker, watcher: Watcher, open_link: OpenLink
) -> None:
    asker.ask()
    info = watcher.asked()
    assert Watcher(open_link()).waiting == [info]


def test_when_the_last_watcher_leaves_nobody_is_there(
    asker: Asker, watcher: Watcher, open_link: OpenLink
) -> None:
    second = Watcher(open_link())
    request_id = asker.ask()
    second.asked()
    watcher.link.close()
    assert len(second.link.call("approval.list", {})["approvals"]) == 1
    second.link.close()
    assert asker.outcome(request_id) == "unavailable"


def test_a_client_that_leaves_takes_its_question_along(
    asker: Asker, watcher: Watcher
) -> None:
    asker.ask()
    approval_id = watcher.asked()["approval_id"]
    asker.link.close()
    assert watcher.settled() == (approval_id, "cancelled")
    with pytest.raises(UnknownApprovalError):
        watcher.decide(approval_id, "allowed-once")


def test_a_question_can_be_withdrawn(asker: Asker, watcher: Watcher) -> None:
    request_id = asker.ask()
    watcher.asked()
    asker.link.send("exec.cancel", {"request_id": request_id})
    assert asker.outcome(request_id) == "cancelled"
    assert watcher.settled()[1] == "cancelled"


def test_never_is_no_before_anybody_is_asked(asker: Asker, watcher: Watcher) -> None:
    params = {"session_id": asker.session_id, "approval": "never"}
    asker.link.call("session.set_approval", params)
    assert asker.outcome(asker.ask()) == "rejected"
    asker.link.call("session.set_approval", {**params, "approval": "ask"})
    asker.ask(command="after")
    assert watcher.asked()["command"] == "after"


def test_a_configuration_may_say_that_nobody_is_asked(
    make_daemon: DaemonFactory,
) -> None:
    daemon = make_daemon(
        account=current_account(), settings={"approval": {"policy": "never"}}
    )
    links = [Link.reach(str(daemon.socket), autostart=False) for _ in range(2)]
    watcher = Watcher(links[0])
    folder = daemon.make_workspace()
    asker = Asker(links[1], folder)
    assert asker.outcome(asker.ask()) == "rejected"
    # A session may say otherwise for itself.
    asking = Asker(links[1], folder, approval="ask")
    asking.ask(command="of the one that asks")
    assert watcher.asked()["command"] == "of the one that asks"
    for link in links:
        link.close()


def test_other_outcomes_are_no_answers(asker: Asker, watcher: Watcher) -> None:
    asker.ask()
    approval_id = watcher.asked()["approval_id"]
    for outcome in ("cancelled", "unavailable", "allowed-always", ""):
        with pytest.raises(InvalidParamsError):
            watcher.decide(approval_id, outcome)
    assert len(watcher.link.call("approval.list", {})["approvals"]) == 1


def test_only_for_a_session_of_ones_own(asker: Asker) -> None:
    with pytest.raises(UnknownSessionError):
        asker.outcome(asker.ask(session_id="s-" + "0" * 32))


def test_a_loop_that_asks_is_refused(asker: Asker, watcher: Watcher) -> None:
    # More than may wait at once, so that a slow machine's refilled bucket will not do.
    for _ in range(130):
        asker.ask()
    # None of them is answered, so what comes is a refusal.
    with pytest.raises(LimitError, match="too many"):
        result_of(asker.link.receive())
    assert watcher.asked()["command"] == COMMAND


def test_a_watcher_that_never_answers_is_not_waited_for_forever(
    make_daemon: DaemonFactory,
) -> None:
    daemon = make_daemon(
        account=current_account(), settings={"approval": {"wait_s": WAIT_S}}
    )
    links = [Link.reach(str(daemon.socket), autostart=False) for _ in range(2)]
    asker = Asker(links[0], daemon.make_workspace())
    watcher = Watcher(links[1])
    began = time.monotonic()
    assert asker.outcome(asker.ask()) == "unavailable"
    assert time.monotonic() - began >= WAIT_S
    assert watcher.asked()
    assert watcher.settled()[1] == "unavailable"
    for link in links:
        link.close()


ASK_AND_DECIDE = """
import json, sys
from bashd.client.link import Link
from bashd.core.errors import BashdError
link = Link.reach(sys.argv[1], autostart=False)
seen = []
link.on_notification = lambda method, params: seen.append(method)
for method, params in json.loads(sys.argv[2]):
    try:
        print(json.dumps(link.call(method, params)), flush=True)
    except BashdError as error:
        print(json.dumps(error.code), flush=True)
print(json.dumps(seen))
"""


class TestWhoMayAnswer:
    @pytest.fixture
    def speaker(self, root_account: Account) -> Account:
        """Root, whose questions others are after."""
        return root_account

    @pytest.fixture
    def daemon(
        self,
        make_daemon: DaemonFactory,
        root_account: Account,
        ordinary_user: Account,
    ) -> RunningDaemon:
        """Serves root and an ordinary user."""
        return make_daemon(account=root_account, caller=ordinary_user)

    def attack(
        self, daemon: RunningDaemon, account: Account, approval_id: str, *prefix: str
    ) -> list[str]:
        """Try to see and to answer a question of root's as *account*."""
        decide = f'{{"approval_id": "{approval_id}", "outcome": "allowed-once"}}'
        calls = (
            '[["approval.list", {}], ["approval.watch", {}], '
            f'["approval.decide", {decide}]]'
        )
        python = [daemon.install.python, "-c", ASK_AND_DECIDE]
        done = as_user(account, [*prefix, *python, str(daemon.socket), calls])
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def test_another_user_neither_sees_nor_answers(
        self,
        asker: Asker,
        watcher: Watcher,
        daemon: RunningDaemon,
        ordinary_user: Account,
    ) -> None:
        asker.ask()
        approval_id = watcher.asked()["approval_id"]
        empty = '{"approvals": []}'
        lines = self.attack(daemon, ordinary_user, approval_id)
        assert lines == [empty, empty, '"UNKNOWN_APPROVAL"', "[]"]
        assert len(watcher.link.call("approval.list", {})["approvals"]) == 1

    def test_a_confined_process_neither_sees_nor_answers(
        self,
        asker: Asker,
        watcher: Watcher,
        daemon: RunningDaemon,
        root_account: Account,
    ) -> None:
        asker.ask()
        approval_id = watcher.asked()["approval_id"]
        prefix = ("setpriv", "--no-new-privs")
        lines = self.attack(daemon, root_account, approval_id, *prefix)
        assert lines == ['"NOT_ALLOWED"'] * 3 + ["[]"]
        assert len(watcher.link.call("approval.list", {})["approvals"]) == 1
        # Not for lack of rights: the same, unconfined, does it.
        lines = self.attack(daemon, root_account, approval_id)
        assert lines[2] == "{}"
