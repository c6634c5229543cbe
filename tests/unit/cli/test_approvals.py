"""`bashd approvals`, `approve` and `reject`: a person at a terminal, and programs."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import pytest

from bashd.core.errors import UnknownApprovalError
from bashd.tools.question import SHOWN_CHARS, question_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.client.wire_server import Connection, WireServer

_PATIENCE_S = 40


def question(approval_id: str = "a-1", **facts: Any) -> dict[str, Any]:
    return {
        "approval_id": approval_id,
        "session_id": "s-1",
        "call_id": "7",
        "tool_name": "bash",
        "command": "make install",
        "workdir": "/srv/project",
        "mode": "danger-full-access",
        "reason": "escalate sandbox to danger-full-access: it installs",
        "asked_at": time.time() - 5,
        **facts,
    }


class Daemon:
    """The approvals of a daemon, as a test wants them."""

    def __init__(self, server: WireServer) -> None:
        self.server = server
        self.waiting: list[dict[str, Any]] = []
        self.watcher: Connection | None = None
        self.refuse = False
        server.handlers["approval.list"] = lambda _c, _i, _p: self._listed()
        server.handlers["approval.watch"] = self._watch
        server.handlers["approval.decide"] = self._decide

    def ask(self, info: dict[str, Any]) -> None:
        self._watcher().notify("approval.asked", {"approval": info})

    def settle(self, approval_id: str, outcome: str) -> None:
        params = {"approval_id": approval_id, "outcome": outcome}
        self._watcher().notify("approval.settled", params)

    def decided(self, count: int) -> list[tuple[str, str]]:
        found = self.server.wait_asked("approval.decide", count)
        return [(params["approval_id"], params["outcome"]) for params in found]

    def _watcher(self) -> Connection:
        self.server.wait_asked("approval.watch")
        deadline = time.monotonic() + _PATIENCE_S
        while self.watcher is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return self.watcher

    def _listed(self) -> dict[str, Any]:
        return {"approvals": self.waiting}

    def _watch(self, connection: Connection, _: Any, _params: Any) -> dict[str, Any]:
        self.watcher = connection
        return self._listed()

    def _decide(self, connection: Connection, _: Any, params: Any) -> dict[str, Any]:
        if self.refuse:
            raise UnknownApprovalError("no such question")
        connection.notify("approval.settled", params)
        return {}


@pytest.fixture
def daemon(server: WireServer) -> Daemon:
    return Daemon(server)


def argv(daemon: Daemon, *words: str) -> list[str]:
    socket = ["--socket", str(daemon.server.path)]
    return [sys.executable, "-m", "bashd", *words, *socket]


def bashd(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv(daemon, *words),
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
        stdin=subprocess.DEVNULL,
    )


class Terminal:
    """`bashd approvals --watch` with a person in front of it."""

    def __init__(self, daemon: Daemon, *words: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            argv(daemon, "approvals", "--watch", *words),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.screen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)

    def see(self, text: str) -> str:
        """Wait until *text* is on the screen; return all since the last of these."""
        deadline = time.monotonic() + _PATIENCE_S
        while text not in self.screen:
            ready, _, _ = select.select([self._master], [], [], 1)
            assert time.monotonic() < deadline, self.screen
            if ready:
                read = os.read(self._master, 65536).decode()
                self.screen += read.replace("\r\n", "\n")
        before, found, self.screen = self.screen.partition(text)
        return before + found

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def hang_up(self) -> None:
        os.close(self._master)
        self._master = -1


@pytest.fixture
def terminal(daemon: Daemon) -> Iterator[Terminal]:
    with Terminal(daemon) as opened:
        opened.see("Ctrl-C ends.\n")
        yield opened


PROMPT = "Run it, once? [y/n] "


# --- one shot ---------------------------------------------------------------------------


def test_what_waits_is_shown_whole_and_escaped(daemon: Daemon) -> None:
    daemon.waiting = [
        question(command="echo \x1b[2J\nrm -rf ~\u202e", reason="a\x07b"),
        question("a-2", mode=None, workdir="/tmp/\n/etc"),
    ]
    shown = re.sub(r"asked 5\.\ds", "asked 5.0s", bashd(daemon, "approvals").stdout)
    assert shown == (
        "[a-1] asked 5.0s ago by session s-1\n"
        "Run this command in danger-full-access mode?\n\n"
        "    echo \\x1b[2J\n"
        "    rm -rf ~\\u202e\n\n"
        "Directory: /srv/project\n"
        "Reason: a\\x07b\n\n"
        "[a-2] asked 5.0s ago by session s-1\n"
        "Run this command?\n\n"
        "    make install\n\n"
        "Directory: /tmp/\\n/etc\n"
        "Reason: escalate sandbox to danger-full-access: it installs\n\n"
    )


def test_json_has_the_questions_as_they_are(daemon: Daemon) -> None:
    daemon.waiting = [question(command="x" * 100_000)]
    done = bashd(daemon, "approvals", "--json")
    assert json.loads(done.stdout) == {"approvals": daemon.waiting}


def test_a_long_command_says_how_much_is_hidden() -> None:
    text = question_text(
        "x" * (SHOWN_CHARS + 5), workdir=None, mode="workspace-write", reason="r"
    )
    assert "(5 more characters of the command are NOT shown)" in text


@pytest.mark.parametrize(
    ("verb", "outcome"), [("approve", "allowed-once"), ("reject", "rejected")]
)
def test_one_answer_from_anywhere(daemon: Daemon, verb: str, outcome: str) -> None:
    done = bashd(daemon, verb, "a-1", "--json")
    assert json.loads(done.stdout) == {"approval_id": "a-1", "outcome": outcome}
    assert bashd(daemon, verb, "a-1").stdout == ""
    assert daemon.decided(2) == [("a-1", outcome)] * 2


def test_an_answer_that_comes_too_late_fails(daemon: Daemon) -> None:
    daemon.refuse = True
    done = bashd(daemon, "approve", "a-1")
    assert (done.returncode, done.stderr) == (125, "bashd: no such question\n")


# --- a person at a terminal -------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "outcome"),
    [("y\n", "allowed-once"), ("YES\n", "allowed-once"), ("n\n", "rejected")],
)
def test_a_person_is_asked_at_once(
    daemon: Daemon, terminal: Terminal, typed: str, outcome: str
) -> None:
    daemon.ask(question())
    shown = terminal.see(PROMPT)
    assert "    make install\n\nDirectory: /srv/project\n" in shown
    terminal.type(typed)
    terminal.see(f"[a-1] {outcome}\n")
    assert daemon.decided(1) == [("a-1", outcome)]


@pytest.mark.parametrize("typed", ["\n", "maybe\n", "yy\n", " \n", "\x04y\n"])
def test_what_is_no_answer_answers_nothing(
    daemon: Daemon, terminal: Terminal, typed: str
) -> None:
    daemon.ask(question())
    terminal.see(PROMPT)
    terminal.type(typed)
    if typed.startswith("\x04"):
        # The end of the input: nobody is there any more.
        assert terminal.process.wait(_PATIENCE_S) == 0
    else:
        terminal.see(PROMPT)
    assert daemon.server.asked("approval.decide") == []


def test_questions_come_one_after_the_other(daemon: Daemon, terminal: Terminal) -> None:
    daemon.ask(question("a-1", command="first"))
    daemon.ask(question("a-2", command="second"))
    assert "second" not in terminal.see(PROMPT)
    terminal.type("n\n")
    assert "    second\n" in terminal.see(PROMPT)
    terminal.type("y\n")
    terminal.see("[a-2] allowed-once\n")
    assert daemon.decided(2) == [("a-1", "rejected"), ("a-2", "allowed-once")]


def test_what_was_typed_before_a_question_does_not_answer_it(
    daemon: Daemon, terminal: Terminal
) -> None:
    # Two lines at once: the second is there before its question can have been read.
    daemon.ask(question("a-1"))
    daemon.ask(question("a-2"))
    terminal.see(PROMPT)
    terminal.type("n\ny\n")
    terminal.see("[a-1] rejected\n")
    terminal.see(PROMPT)
    terminal.type("n\n")
    terminal.see("[a-2] rejected\n")
    assert daemon.decided(2) == [("a-1", "rejected"), ("a-2", "rejected")]


def test_a_question_that_is_withdrawn_is_no_longer_asked(
    daemon: Daemon, terminal: Terminal
) -> None:
    daemon.ask(question("a-1"))
    terminal.see(PROMPT)
    daemon.settle("a-1", "cancelled")
    terminal.see("[a-1] no longer waits: cancelled\n")
    terminal.type("y\n")
    daemon.ask(question("a-2"))
    terminal.see(PROMPT)
    assert daemon.server.asked("approval.decide") == []


def test_an_answer_that_crosses_another_is_told(
    daemon: Daemon, terminal: Terminal
) -> None:
    daemon.refuse = True
    daemon.ask(question())
    terminal.see(PROMPT)
    terminal.type("y\n")
    terminal.see("[a-1] too late")
    daemon.ask(question("a-2"))
    terminal.see(PROMPT)


def test_ctrl_c_ends_it(daemon: Daemon, terminal: Terminal) -> None:
    daemon.ask(question())
    terminal.see(PROMPT)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(_PATIENCE_S) == 130


def test_a_terminal_that_is_gone_watches_no_more(
    daemon: Daemon, terminal: Terminal
) -> None:
    daemon.ask(question())
    terminal.see(PROMPT)
    terminal.hang_up()
    assert terminal.process.wait(_PATIENCE_S) is not None


def test_json_on_a_terminal_asks_nobody(daemon: Daemon) -> None:
    with Terminal(daemon, "--json") as terminal:
        daemon.ask(question())
        terminal.see('{"asked": ')
        terminal.type("y\n")
        daemon.settle("a-1", "unavailable")
        terminal.see('"outcome": "unavailable"}}\n')
    assert daemon.server.asked("approval.decide") == []


# --- programs -----------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
def test_without_a_terminal_nothing_is_read_and_nothing_answered(
    daemon: Daemon, words: tuple[str, ...]
) -> None:
    daemon.waiting = [question("a-0")]
    with subprocess.Popen(
        argv(daemon, "approvals", "--watch", *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("y\n" * 100)
        process.stdin.close()
        daemon.ask(question("a-1"))
        daemon.settle("a-0", "rejected")
        seen = ""
        while not (
            ("a-1" in seen and '"rejected"' in seen) or "[a-0] rejected" in seen
        ):
            seen += process.stdout.readline()
        # Whoever reads leaves: then nobody watches any more.
        process.stdout.close()
        assert process.wait(_PATIENCE_S) == 0
    assert daemon.server.asked("approval.decide") == []


def test_a_daemon_that_goes_is_a_failure(daemon: Daemon) -> None:
    with subprocess.Popen(
        argv(daemon, "approvals", "--watch"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        daemon.server.wait_asked("approval.watch")
        daemon.server.drop_clients()
        _, errors = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 125
    assert "the daemon closed the connection" in errors
