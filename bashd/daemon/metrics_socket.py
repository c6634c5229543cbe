"""Where metrics are read: HTTP on a Unix socket, and a text file if one is wanted.

    curl --unix-socket /run/bashd/bashd.sock.metrics http://bashd/metrics

The socket lies beside the main one and is the daemon's owner's, or also a group's that
the configuration names: a figure of all users together is still one about others. The
file is for the node exporter's textfile collector; it is replaced whole.
"""

from __future__ import annotations

import contextlib
import grp
import logging
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from bashd.core.errors import ConfigError

if TYPE_CHECKING:
    from bashd.core.config import MetricsConfig
    from bashd.daemon.metrics import Metrics

logger = logging.getLogger(__name__)

SUFFIX: Final = ".metrics"
_READERS: Final = 8
"""At the same time; a scraper is one."""
_REQUEST_BYTES: Final = 8192
_REQUEST_S: Final = 5.0
_RETRY_S: Final = 1.0
_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class MetricsSocket:
    """Serves the text of *metrics*.

    Args:
        metrics: What to serve.
        path: Of the socket; one that is there is a dead daemon's.
        config: Who may read, and which file to write.
    """

    def __init__(self, metrics: Metrics, path: Path, config: MetricsConfig) -> None:
        self._metrics = metrics
        self._path = path
        self._config = config
        gid = _gid(config.group)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(str(path))
        self._socket = trio.socket.from_stdlib_socket(bound)
        path.chmod(0o600)
        if gid is not None:
            os.chown(path, -1, gid)
            path.chmod(0o660)
        self._socket.listen(_READERS)

    async def serve(self) -> None:
        """Answer until cancelled or closed."""
        async with trio.open_nursery() as nursery:
            if self._config.text_file is not None:
                nursery.start_soon(self._keep_file, Path(self._config.text_file))
            limit = trio.CapacityLimiter(_READERS)
            while True:
                try:
                    reader, _ = await self._socket.accept()
                except trio.ClosedResourceError:
                    nursery.cancel_scope.cancel()
                    return
                except OSError as error:
                    # Out of descriptors, most likely; commands come first.
                    logger.warning("metrics are not served: %s", error)
                    await trio.sleep(_RETRY_S)
                    continue
                await limit.acquire_on_behalf_of(reader)
                nursery.start_soon(self._answer, reader, limit)

    def close(self) -> None:
        """Stop listening; nothing is left of the socket and the file."""
        self._socket.close()
        self._path.unlink(missing_ok=True)
        if self._config.text_file is not None:
            Path(self._config.text_file).unlink(missing_ok=True)

    async def _answer(
        self, reader: trio.socket.SocketType, limit: trio.CapacityLimiter
    ) -> None:
        try:
            # A reader that leaves early is no news.
            with (
                trio.move_on_after(_REQUEST_S),
                contextlib.suppress(OSError, trio.BrokenResourceError),
            ):
                asked = await _read_head(reader)
                await trio.SocketStream(reader).send_all(self._reply(asked))
        finally:
            reader.close()
            limit.release_on_behalf_of(reader)

    def _reply(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split()
        body, status = "", "404 Not Found"
        if words[:1] == [b"GET"] and words[1:2] in ([b"/metrics"], [b"/"]):
            body, status = self._metrics.text(), "200 OK"
        data = body.encode()
        lines = (
            f"HTTP/1.1 {status}",
            f"Content-Type: {_TYPE}",
            f"Content-Length: {len(data)}",
            "Connection: close",
        )
        return "\r\n".join((*lines, "", "")).encode() + data

    async def _keep_file(self, path: Path) -> None:
        while True:
            try:
                draft = path.with_name(f".{path.name}.new")
                draft.write_text(self._metrics.text())
                draft.chmod(0o644)
                draft.replace(path)
            except OSError as error:
                logger.warning("metrics are not written: %s", error)
            await trio.sleep(self._config.text_interval_s)


async def _read_head(reader: trio.socket.SocketType) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _REQUEST_BYTES:
        data = await reader.recv(_REQUEST_BYTES)
        if not data:
            break
        head += data
    return head


def _gid(group: str | None) -> int | None:
    if group is None:
        return None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(
            f'metrics.group: there is no group "{group}"; make it, or remove the key'
        ) from None
