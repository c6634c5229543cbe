"""Which runner confines: a functional probe that enforces a real policy, once.

``auto`` tries bubblewrap, then Landlock alone. Each rung is probed at most once in the
daemon's life, by running a command that writes where it may and where it may not; the
verdict, "unusable" included, is kept. Nothing in a workspace and no environment
variable has a say.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from bashd.core.errors import (
    BashdError,
    RunnerFailedError,
    SandboxUnavailableError,
)
from bashd.core.model import Mode
from bashd.daemon.cells import BWRAP, LANDLOCK

ADVICE = (
    "Install bubblewrap or run a Landlock-enforcing kernel (Linux), and run"
    " `bashd doctor` to see what is missing."
)

Probe = Callable[[str], Awaitable[str | None]]
"""Tries one runner; returns why it cannot be used, or None when it can."""


class NoRoomError(RunnerFailedError):
    """Disk or descriptors ran out under a probe, which so says nothing of the runner."""


def unavailable(mode: Mode, detail: str) -> SandboxUnavailableError:
    """Build the refusal that every surface shows."""
    text = (
        f'sandbox mode "{mode}" is requested but no sandbox backend is usable on this'
        f" host; refusing to run the command unconfined. {ADVICE}"
    )
    if detail:
        text += f" Runner failure: {detail}"
    return SandboxUnavailableError(text)


@dataclass(slots=True)
class Runners:
    """The rungs in their order, and what is known of each."""

    wanted: str
    """``auto``, ``bwrap`` or ``landlock``, from the config."""
    probe: Probe
    probe_timeout_s: float
    verdicts: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    """Runner to the reason it cannot be used; None when it can."""
    _lock: trio.Lock = field(default_factory=trio.Lock)

    @property
    def chosen(self) -> str | None:
        """The first rung known to work; None before a probe or when none does."""
        for name in self._order():
            if name in self.verdicts and self.verdicts[name] is None:
                return name
            if name not in self.verdicts:
                return None
        return None

    def _order(self) -> tuple[str, ...]:
        return (BWRAP, LANDLOCK) if self.wanted == "auto" else (self.wanted,)

    async def choose(self, mode: Mode) -> str | None:
        """Return the runner for *mode*; None for danger-full-access.

        Raises:
            SandboxUnavailableError: No rung is usable.
        """
        if not mode.confines:
            return None
        chosen = self.chosen
        if chosen is not None:
            return chosen
        async with self._lock:
            for name in self._order():
                if name not in self.verdicts:
                    try:
                        self.verdicts[name] = await self._try(name)
                    except NoRoomError as error:
                        # No verdict: it is tried again when there is room.
                        raise unavailable(mode, error.message) from error
                if self.verdicts[name] is None:
                    return name
        detail = "; ".join(f"{name}: {why}" for name, why in self.verdicts.items())
        raise unavailable(mode, detail)

    async def _try(self, name: str) -> str | None:
        with trio.move_on_after(self.probe_timeout_s):
            try:
                return await self.probe(name)
            except NoRoomError:
                raise
            except BashdError as error:
                return error.message
            except OSError as error:
                return str(error)
        return f"did not answer within {self.probe_timeout_s:g} s"


def check_root(mode: Mode, runner: str | None, uid: int, landlock_abi: int) -> None:
    """Refuse uid 0 in bubblewrap's mounts alone.

    Without a capability it still is the owner of the kernel's files, and where a mount
    shows them nothing else stands in the way (measured: knobs below /proc/sys).

    Raises:
        SandboxUnavailableError: There is no Landlock behind the mounts.
    """
    if runner == BWRAP and uid == 0 and not landlock_abi:
        raise unavailable(mode, "bubblewrap alone does not hold root; run as a user")


def probe_script(canary: str) -> tuple[str, str]:
    """Return a command that proves the walls, and the word it prints when they hold.

    It must be able to write to its working folder and to its scratch, and must fail
    to write to *canary*, a folder it can see.
    """
    word = secrets.token_hex(8)
    command = (
        f'echo {word} > probe-{word} && echo {word} > "$TMPDIR/probe-{word}"'
        f" && ! (echo {word} > {canary}/probe-{word}) 2>/dev/null"
        f' && cat probe-{word} && rm probe-{word} "$TMPDIR/probe-{word}"'
    )
    return command, word
