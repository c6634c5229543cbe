"""A server that speaks the wire over a real Unix socket and runs real bash.

It confines nothing and keeps everything in memory: enough of a daemon for clients to be
tested against on their own. Each connection and each request has a thread. A test can
replace the handler of any method.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from base64 import b64decode, b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bashd.core.errors import BashdError, StartError, UnknownMethodError
from bashd.protocol.framing import Framer
from bashd.protocol.wire import error_object, notification_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

import json

Json = dict[str, Any]
Handler = "Callable[[Connection, Any, Json], Any]"

EXECUTOR = {
    "cwd": "/",
    "timeout_ms": 120000,
    "max_timeout_ms": 600000,
    "max_output_bytes": 64000,
    "max_spill_bytes": 67108864,
    "grace_ms": 3000,
    "sandbox_mode": "read-only",
}


def session_info(session_id: str, params: Json) -> Json:
    override = params.get("mode")
    return {
        "session_id": session_id,
        "cwd": params.get("cwd", "/"),
        "mode": override or "read-only",
        "mode_override": override,
        "policy": params.get("policy"),
        "created_at": 1000.0,
        "log_path": None,
        "default": False,
        "running_tasks": 0,
    }


def run_result(**facts: Any) -> Json:
    stream = {"text": "", "truncated": False, "spill_path": None, "bytes": 0}
    return {
        "exit_code": 0,
        "signal": None,
        "timed_out": False,
        "aborted": False,
        "timeout_ms": 120000,
        "stdout": dict(stream),
        "stderr": dict(stream),
        "sandbox": {"mode": "read-only", "denied": False, "verdict": "none"},
        "env_removed": [],
        "run_id": "r1",
        "usage": {"wall_ms": 1, "cpu_ms": 1, "max_rss_bytes": 1},
        **facts,
    }


def kept(data: bytes) -> Json:
    return {
        "text": data.decode(errors="replace"),
        "truncated": False,
        "spill_path": None,
        "bytes": len(data),
    }


def task_info(task_id: str, **facts: Any) -> Json:
    return {
        "task_id": task_id,
        "session_id": "s1",
        "command": "true",
        "status": "running",
        "exit_code": None,
        "signal": None,
        "started_at": 1000.0,
        "age_s": 1.5,
        **facts,
    }


class Connection:
    """One client of the server."""

    def __init__(self, server: WireServer, sock: socket.socket) -> None:
        self.server = server
        self.sock = sock
        self.running: dict[Any, subprocess.Popen[bytes]] = {}
        self.aborted: set[Any] = set()
        self._lock = threading.Lock()

    def send(self, line: bytes) -> None:
        with self._lock, contextlib.suppress(OSError):
            self.sock.sendall(line)

    def notify(self, method: str, params: Json) -> None:
        self.send(notification_line(method, params))

    def output(self, request_id: Any, stream: str, data: bytes, offset: int) -> None:
        params = {
            "request_id": request_id,
            "stream": stream,
            "data_b64": b64encode(data).decode(),
            "offset": offset,
        }
        self.notify("exec.output", params)

    def answer(self, request_id: Any, member: str, value: Any) -> None:
        message = {"jsonrpc": "2.0", "id": request_id, member: value}
        self.send(json.dumps(message).encode() + b"\n")

    def serve(self) -> None:
        framer = Framer()
        with self.sock:
            while data := self._receive():
                framer.receive_data(data)
                while (message := framer.next_frame()) is not None:
                    self.server.requests.append((message["method"], message["params"]))
                    self._start(message)
            for process in self.running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _receive(self) -> bytes:
        with contextlib.suppress(OSError):
            return self.sock.recv(65536)
        return b""

    def _start(self, message: Json) -> None:
        # In the reader's thread: what must not overtake, or is quick.
        if message["method"] in {"initialize", "exec.cancel"}:
            self._handle(message)
        else:
            self.server.spawn(self._handle, message)

    def _handle(self, message: Json) -> None:
        request_id = message.get("id")
        try:
            handler = self.server.handlers.get(message["method"])
            if handler is None:
                raise UnknownMethodError(f"no handler for {message['method']}")
            self.answer(
                request_id, "result", handler(self, request_id, message["params"])
            )
        except BashdError as error:
            self.answer(request_id, "error", error_object(error))


class WireServer:
    """Listens on *path* from its creation until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: list[tuple[str, Json]] = []
        """Method and parameters of everything that was asked."""
        self.handlers: dict[str, Callable[[Connection, Any, Json], Any]] = {
            "initialize": self._initialize,
            "daemon.status": self._status,
            "session.open": lambda _c, _i, params: session_info("s1", params),
            "session.attach": lambda _c, _i, params: session_info(
                params["session_id"], params
            ),
            "session.get": lambda _c, _i, params: session_info(
                params["session_id"], params
            ),
            "session.set_mode": lambda _c, _i, params: session_info(
                params["session_id"], params
            ),
            "session.list": lambda _c, _i, _p: {
                "sessions": [session_info("s1", {}), session_info("s2", {})]
            },
            "session.close": lambda _c, _i, _p: {},
            "task.subscribe": lambda _c, _i, _p: {},
            "exec.run": self._run,
            "exec.cancel": self._cancel,
            "exec.stdin": self._stdin,
        }
        self._threads: list[threading.Thread] = []
        self.connections: list[Connection] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.spawn(self._accept)

    def spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(40)
        self.path.unlink()

    def drop_clients(self) -> None:
        """Close every connection, as a daemon that dies does."""
        for connection in self.connections:
            # Some have left by themselves.
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def asked(self, method: str) -> list[Json]:
        """Return the parameters of every request of one method so far."""
        return [params for name, params in self.requests if name == method]

    def wait_asked(self, method: str, count: int = 1) -> list[Json]:
        """Return those parameters once there are *count*."""
        deadline = time.monotonic() + 40
        while len(found := self.asked(method)) < count:
            assert time.monotonic() < deadline, f"{method} never came"
            time.sleep(0.005)
        return found

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            connection = Connection(self, sock)
            self.connections.append(connection)
            self.spawn(connection.serve)

    def _initialize(self, _: Connection, _id: Any, _params: Json) -> Json:
        return {
            "protocol": 1,
            "version": "0.1.0",
            "pid": os.getpid(),
            "uid": os.getuid(),
            "executor": EXECUTOR,
        }

    def _status(self, _: Connection, _id: Any, _params: Json) -> Json:
        return {
            "version": "0.1.0",
            "pid": os.getpid(),
            "uptime_s": 75.0,
            "sessions": 2,
            "cells": 1,
            "tasks": 0,
            "runner": "bwrap",
        }

    def _run(self, connection: Connection, request_id: Any, params: Json) -> Json:
        env = {**params.get("ambient", {}), **(params.get("env") or {})}
        forwards = params.get("stdin_stream") or "stdin_b64" in params
        try:
            process = subprocess.Popen(
                ["bash", "-c", params["command"]],
                stdin=subprocess.PIPE if forwards else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=params.get("workdir") or params.get("cwd") or "/",
                env={"PATH": os.environ["PATH"], **env},
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise StartError(f"spawn failed: {error}") from None
        connection.running[request_id] = process
        collected = {"stdout": bytearray(), "stderr": bytearray()}
        with process:
            if "stdin_b64" in params:
                feed(process, b64decode(params["stdin_b64"]), eof=True)
            readers = [
                threading.Thread(
                    target=self._collect,
                    args=(connection, request_id, params, name, pipe, collected[name]),
                )
                for name, pipe in (
                    ("stdout", process.stdout),
                    ("stderr", process.stderr),
                )
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            process.wait()
        code = process.returncode
        return run_result(
            exit_code=code if code >= 0 else None,
            signal=signal.Signals(-code).name if code < 0 else None,
            aborted=request_id in connection.aborted,
            stdout=kept(bytes(collected["stdout"])),
            stderr=kept(bytes(collected["stderr"])),
        )

    def _collect(
        self,
        connection: Connection,
        request_id: Any,
        params: Json,
        name: str,
        pipe: Any,
        into: bytearray,
    ) -> None:
        while data := os.read(pipe.fileno(), 65536):
            if params.get("stream"):
                connection.output(request_id, name, data, len(into))
            into += data

    def _cancel(self, connection: Connection, _: Any, params: Json) -> Json:
        process = connection.running.get(params["request_id"])
        if process is not None:
            connection.aborted.add(params["request_id"])
            number = signal.SIGKILL if params.get("force") else signal.SIGTERM
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        return {}

    def _stdin(self, connection: Connection, _: Any, params: Json) -> Json:
        # The run was asked for before, but in a thread of its own.
        while params["request_id"] not in connection.running:
            time.sleep(0.001)
        process = connection.running[params["request_id"]]
        feed(process, b64decode(params["data_b64"]), eof=params.get("eof", False))
        return {}


def feed(process: subprocess.Popen[bytes], data: bytes, *, eof: bool) -> None:
    """Write to a command's stdin; one that does not read loses it."""
    assert process.stdin
    rest = memoryview(data)
    with contextlib.suppress(BrokenPipeError, ValueError):
        while rest:
            rest = rest[process.stdin.write(rest) :]
        if eof:
            process.stdin.close()


@contextlib.contextmanager
def serving(folder: Path) -> Generator[WireServer]:
    """Yield a server on a socket in *folder*."""
    server = WireServer(folder / "bashd.sock")
    try:
        yield server
    finally:
        server.close()
