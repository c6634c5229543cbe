"""Makes the calls that are timed, in a process of the caller's own.

Whoever measures as an ordinary user has to *be* one, and a contender from another
virtual environment needs that one's interpreter. So every timed call is made by a
process like this one, started with the right account and interpreter, and times come
back as numbers. Contenders are thereby all called from the same kind of program.

It is copied to where every account can read it, so only the standard library is
imported up here. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Call = Callable[[], "Callable[[], object] | None"]
"""What is timed; it may return what has to be done afterwards, which is not."""
_OWN = "own-"
"""Begins the names of sessions that a caller opened for itself."""


class Driver:
    """Answers requests, and holds what is open between two of them."""

    def __init__(self) -> None:
        self._open: dict[str, contextlib.ExitStack] = {}
        self._clients: dict[str, Any] = {}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def answer(self, do: str, **details: Any) -> object:
        """Do what a line asks for."""
        return getattr(self, f"do_{do}")(**details)

    # --- timed calls -------------------------------------------------------------

    def do_time(self, what: list[Any], count: int, pause_s: float) -> list[float]:
        """Make a call *count* times; return the seconds each took."""
        call = self._call(*what)
        seconds: list[float] = []
        for _ in range(count):
            if pause_s:
                time.sleep(pause_s)
            start = time.perf_counter()
            afterwards = call()
            seconds.append(time.perf_counter() - start)
            if afterwards is not None:
                afterwards()
        return seconds

    def do_rate(
        self, what: list[Any], threads: int, warm_up_s: float, for_s: float, at: float
    ) -> int:
        """Make calls from some threads between two moments; return how many.

        Args:
            what: The call.
            threads: How many make it, each with a connection of its own.
            warm_up_s: Connections and first cells are not what is counted.
            for_s: How long is counted.
            at: When the warm-up begins, on the machine's monotonic clock: several
                drivers count at the same time.
        """
        calls = [self._call(*what) for _ in range(threads)]
        begin = at + warm_up_s
        with ThreadPoolExecutor(threads) as pool:
            counts = [pool.submit(_count, call, begin, begin + for_s) for call in calls]
        for key in [key for key in self._open if key.startswith(_OWN)]:
            self.do_close(key)
        return sum(count.result() for count in counts)

    def _call(self, kind: str, *details: Any) -> Call:
        return getattr(self, f"_call_{kind}")(*details)

    def _call_spawn(
        self, argv: list[str], env: dict[str, str] | None, cwd: str | None
    ) -> Call:
        """Start a program as a harness would: its output goes into pipes."""
        whole = None if env is None else dict(os.environ) | env

        def spawn() -> None:
            done = subprocess.run(
                argv,
                env=whole,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            if done.returncode:
                said = done.stderr[-500:].decode(errors="replace")
                raise RuntimeError(f"{argv[0]} exited with {done.returncode}: {said}")

        return spawn

    def _call_client(self, key: str, command: str) -> Call:
        """Run a command through a connection and session that are open."""
        client = self._clients[key]
        return lambda: _insist(client.run(command))

    def _call_own_client(self, options: dict[str, Any], command: str) -> Call:
        """The same through a connection and session of its own, opened now."""
        key = f"{_OWN}{len(self._open)}"
        self.do_open(key, options)
        return self._call_client(key, command)

    def _call_cold(self, options: dict[str, Any]) -> Call:
        """Connect, open a session and run its first command; close it unhurriedly."""

        def first() -> Callable[[], object]:
            self.do_open("cold", options)
            _insist(self._clients["cold"].run("true"))
            return lambda: self.do_close("cold")

        return first

    def _call_mcp(self, key: str, command: str) -> Call:
        """One ``tools/call`` over the standard input and output of a server."""
        arguments = {"command": command, "description": "measure"}

        def call() -> None:
            result = self._ask_server(
                key, "tools/call", {"name": "bash", "arguments": arguments}
            )
            if result.get("isError"):
                raise RuntimeError(f"over MCP: {result}")

        return call

    def _call_sandlock(
        self, readable: list[str], writable: list[str], cwd: str, command: str
    ) -> Call:
        """Run a command through sandlock's library, which is what its package has."""
        import sandlock  # noqa: PLC0415 # pyright: ignore[reportMissingImports]

        def run() -> None:
            box: Any = sandlock.Sandbox(
                fs_readable=readable, fs_writable=writable, cwd=cwd
            )
            result = box.run(["bash", "-c", command])
            if result.exit_code:
                raise RuntimeError(f"sandlock: {result}")

        return run

    # --- what is open between calls -----------------------------------------------

    def do_open(self, key: str, options: dict[str, Any]) -> str:
        """Open a session under a name; return its id."""
        from bashd.client import connect_sync  # noqa: PLC0415 - not in every venv

        stack = contextlib.ExitStack()
        client = stack.enter_context(connect_sync(**options))
        session_id = client.session.session_id
        stack.callback(lambda: client.sessions.close(session_id))
        self._open[key] = stack
        self._clients[key] = client
        return session_id

    def do_serve(self, key: str, argv: list[str], env: dict[str, str]) -> None:
        """Start an MCP server under a name and shake hands."""
        server = subprocess.Popen(
            argv,
            env=dict(os.environ) | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._servers[key] = server
        self._open[key] = stack = contextlib.ExitStack()
        stack.callback(server.communicate)
        shake = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "driver", "version": "1"},
        }
        self._ask_server(key, "initialize", shake)

    def _ask_server(
        self, key: str, method: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        server = self._servers[key]
        assert server.stdin is not None
        assert server.stdout is not None
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        server.stdin.write(json.dumps(message).encode() + b"\n")
        server.stdin.flush()
        for line in server.stdout:
            answer = json.loads(line)
            if answer.get("id") == 1:
                return answer["result"]
        raise RuntimeError("the MCP server has left")

    def do_close(self, key: str) -> None:
        """Close what was opened under a name."""
        self._clients.pop(key, None)
        self._open.pop(key).close()

    # --- work that is not a call ---------------------------------------------------

    def do_start(self, key: str, command: str, count: int) -> list[str]:
        """Start background tasks; return their ids."""
        client = self._clients[key]
        return [client.start(command).task_id for _ in range(count)]

    def do_stream(self, key: str, command: str) -> float:
        """Run one background task to its end; return the seconds it took."""
        client = self._clients[key]
        start = time.perf_counter()
        settled = client.wait(client.start(command).task_id)
        seconds = time.perf_counter() - start
        if settled.exit_code:
            raise RuntimeError(f"{command}: {settled}")
        return seconds

    def do_readable(self, key: str, tasks: list[str]) -> int:
        """Return how many of the tasks have output to read, within a minute."""
        client = self._clients[key]
        mute = set(tasks)
        deadline = time.monotonic() + 60
        while mute and time.monotonic() < deadline:
            mute -= {task for task in mute if client.read_output(task).delta}
        return len(tasks) - len(mute)

    def do_kill(self, key: str, tasks: list[str]) -> None:
        """End background tasks and wait for them."""
        client = self._clients[key]
        for task in tasks:
            client.kill(task)
        for task in tasks:
            client.wait(task)

    def close(self) -> None:
        """Close everything, the latest first."""
        for key in reversed(list(self._open)):
            self.do_close(key)


def _count(call: Call, begin: float, end: float) -> int:
    """Call until *end*; return how often since *begin*."""
    count = 0
    while time.monotonic() < end:
        afterwards = call()
        count += begin <= time.monotonic() < end
        if afterwards is not None:
            afterwards()
    return count


def _insist(result: Any) -> None:
    if result.exit_code:
        raise RuntimeError(f"the command failed: {result}")


def main() -> None:
    """Answer the lines of standard input until it ends."""
    driver = Driver()
    answers = os.fdopen(os.dup(1), "w")
    # Nothing but answers may go where the other end reads answers.
    os.dup2(2, 1)
    with contextlib.closing(driver):
        for line in sys.stdin:
            try:
                answer = {"value": driver.answer(**json.loads(line))}
            except Exception as error:  # noqa: BLE001 - reported to the other end
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
