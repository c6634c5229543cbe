"""The network of a session under ``network = "none"``.

The namespace belongs to the session, not to a cell: a background server started in
one mode answers the next call in another. Root makes a network namespace; a user's
daemon makes one inside a user namespace. Where neither is possible the network is
still off, by refusing Internet sockets, but then there is no loopback either.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field

import trio

from bashd.daemon import code

_MAKER = (
    "import sys;sys.path.insert(0,sys.argv[1]);from launcher import netns;netns.main()"
)
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Entry:
    """How a cell's runner gets into the network."""

    enter: tuple[str, ...] = ()
    """Command prefix; empty for the host's network."""
    fds: tuple[int, ...] = ()
    inet_sockets: bool = True
    """False where the filter must refuse Internet sockets instead."""


@dataclass(slots=True)
class SessionNetwork:
    """Owns the descriptors that keep a session's network namespace alive."""

    lib_dir: str
    net_fd: int = -1
    user_fd: int = -1
    failed: str = ""
    """Why no namespace could be made; then Internet sockets are refused."""
    _lock: trio.Lock = field(default_factory=trio.Lock)

    async def prepare(self, network: str) -> Entry:
        """Return the entry for a policy's ``network``; makes the namespace once."""
        if network == "host":
            return Entry()
        async with self._lock:
            if self.net_fd < 0 and not self.failed:
                await self._make()
        nsenter = shutil.which("nsenter", path="/usr/bin:/bin:/usr/sbin:/sbin")
        if self.net_fd < 0 or nsenter is None:
            return Entry(inet_sockets=False)
        enter = [nsenter, f"--net=/proc/self/fd/{self.net_fd}"]
        fds = [self.net_fd]
        if self.user_fd >= 0:
            enter += [f"--user=/proc/self/fd/{self.user_fd}", "--preserve-credentials"]
            fds.append(self.user_fd)
        return Entry((*enter, "--"), tuple(fds))

    async def _make(self) -> None:
        try:
            process = await trio.lowlevel.open_process(
                [code.interpreter(), "-I", "-S", "-c", _MAKER, self.lib_dir],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
            )
        except OSError as error:
            self.failed = str(error)
            return
        try:
            said = b""
            with trio.move_on_after(_TIMEOUT_S):
                assert process.stdout is not None  # noqa: S101 - asked for above
                said = await process.stdout.receive_some(16)
            if said == b"ready":
                base = f"/proc/{process.pid}/ns"
                self.net_fd = os.open(f"{base}/net", os.O_RDONLY | os.O_CLOEXEC)
                if os.geteuid() != 0:
                    self.user_fd = os.open(f"{base}/user", os.O_RDONLY | os.O_CLOEXEC)
            else:
                self.failed = "this user may not make a network namespace"
        except OSError as error:
            self.failed = str(error)
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        await pipe.aclose()

    def close(self) -> None:
        """Let the namespace go; it ends with the last process in it."""
        for fd in (self.net_fd, self.user_fd):
            if fd >= 0:
                os.close(fd)
        self.net_fd = self.user_fd = -1
