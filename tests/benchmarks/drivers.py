"""The near end of `tests.benchmarks.driver`."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.stats import Contender
from tests.support.accounts import Account, argv_as

_PATIENCE_S = 900
"""No single request takes that long on a machine that is worth measuring."""


class DriverError(Exception):
    """A driver could not do what it was asked for; the text says why."""


class Driver:
    """A process that makes calls as an account.

    Args:
        script: Copy of driver.py that the account can read.
        python: Interpreter to run it with.
        account: Who makes the calls.
        cwd: Where.
        prefix: Command line before its own.
    """

    def __init__(
        self,
        script: Path,
        python: str,
        account: Account,
        cwd: Path,
        prefix: Sequence[str] = (),
    ) -> None:
        self._process = subprocess.Popen(
            [*prefix, *argv_as(account, [python, "-P", str(script)])],
            env=account.environment(),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def begin(self, do: str, **details: Any) -> None:
        """Send a request whose answer `end` returns."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **details}).encode() + b"\n")
        self._process.stdin.flush()

    def end(self) -> Any:
        """Return the answer to the oldest request.

        Raises:
            DriverError: It has none.
        """
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], _PATIENCE_S)[0]:
            raise DriverError(f"no answer within {_PATIENCE_S} s")
        line = stdout.readline()
        if not line:
            raise DriverError(f"left with status {self._process.wait(10)}")
        answer = json.loads(line)
        if "error" in answer:
            raise DriverError(answer["error"])
        return answer["value"]

    def ask(self, do: str, **details: Any) -> Any:
        """Make a request and return its answer."""
        self.begin(do, **details)
        return self.end()

    def contender(self, name: str, what: list[Any]) -> Contender:
        """Return somebody who takes turns at making a call from here."""

        def take(count: int, pause_s: float) -> list[float]:
            return self.ask("time", what=what, count=count, pause_s=pause_s)

        return Contender(name, take)

    def close(self) -> None:
        """End it; what it has open it closes."""
        try:
            self._process.communicate(timeout=120)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate()
