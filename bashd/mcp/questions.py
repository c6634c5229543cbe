"""What a person is shown when a call asks for their consent.

An approval request carries no arguments; it names the call. `CallBook` knows the calls
that are running, so that whoever asks can show the exact command, escaped, with its
directory and the mode asked for. What was shown is what runs: the arguments in the book
are those of the call that waits for the answer.
"""

from __future__ import annotations

import posixpath
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bashd.tools.question import question_text

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from bashd.core.abort import AbortSignal
    from bashd.tools.approval import Answerer, ApprovalRequest


@dataclass(frozen=True, slots=True)
class CommandQuestion:
    """One question about one command."""

    session_id: str
    call_id: str
    command: str
    """Byte for byte what will run."""
    workdir: str | None
    mode: str | None
    """The wider mode asked for; None when a rule asked about a plain call."""
    reason: str

    def text(self) -> str:
        """Return the question for a person, with nothing unprintable in it."""
        question = question_text(
            self.command, workdir=self.workdir, mode=self.mode, reason=self.reason
        )
        return (
            f"{question}\n\n"
            "Accepting lets exactly this command run once; nothing is remembered."
        )


class ApprovalQueue(Protocol):
    """Where questions go that nobody at this end can answer: the daemon's watchers."""

    async def ask(self, question: CommandQuestion, abort: AbortSignal | None) -> str:
        """Wait for a watcher's answer; returns the word of an `Outcome`.

        ``unavailable`` at once where nobody watches, and after the configured time.
        """
        ...


class CallBook:
    """The running calls by their id."""

    def __init__(self) -> None:
        self._arguments: dict[str, Mapping[str, object]] = {}

    @contextmanager
    def entry(self, call_id: str, arguments: Mapping[str, object]) -> Generator[None]:
        """Keep the arguments of a call while it runs."""
        self._arguments[call_id] = arguments
        try:
            yield
        finally:
            del self._arguments[call_id]

    def question(self, request: ApprovalRequest) -> CommandQuestion | None:
        """Return the whole question; None for a call that is not running here."""
        arguments = self._arguments.get(request.call_id)
        if arguments is None:
            return None
        mode, workdir = arguments.get("sandbox_permissions"), arguments.get("workdir")
        cwd = request.agent.cwd
        return CommandQuestion(
            session_id=request.agent.session_id,
            call_id=request.call_id,
            command=str(arguments.get("command")),
            workdir=posixpath.join(cwd or "", str(workdir)) if workdir else cwd,
            mode=str(mode) if mode else None,
            reason=request.reason,
        )


def queue_answerer(queue: ApprovalQueue, book: CallBook) -> Answerer:
    """Return an answerer that passes questions on to *queue*."""

    async def answer(request: ApprovalRequest) -> object:
        question = book.question(request)
        return await queue.ask(question, request.abort) if question else None

    return answer
