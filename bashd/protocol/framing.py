"""Bytes to JSON-RPC objects: lines with a size limit, then strict JSON.

`Framer` cuts a byte stream into lines and knows no socket; `decode_frame` turns one
line into a dict and refuses what readers of JSON disagree about (duplicate keys, NaN,
numbers that overflow, lone surrogates) or what costs more than it says (depth). A line
that is bad leaves the stream usable; a line that is too long does not, because where
the next one starts is then unknown. See `bashd.protocol.wire` for what the objects mean.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque

from bashd.core.errors import FrameError
from bashd.protocol.wire import MAX_FRAME_BYTES, is_array, is_object

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from typing import Any, Final, NoReturn

MAX_DEPTH: Final = 64
"""Brackets open at once; the deepest message of the protocol needs six."""

# Possessive, and content with a string that never ends: a hostile line costs one pass,
# whatever its quotes and backslashes are. Compiled when first needed, which is rare.
_STRING_OR_BRACKET: Final = rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]'


class Framer:
    """Cuts received bytes into lines; never holds more than *max_bytes* of one.

    Errors come out of `next_line` in their place among the lines, so that what arrived
    whole before an oversized line is still answered.
    """

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lines: deque[bytes] = deque()
        self._parts: list[bytes] = []
        self._partial_bytes = 0
        self._broken = False

    @property
    def broken(self) -> bool:
        """Whether a line was too long: framing is lost, the connection must close."""
        return self._broken

    @property
    def partial_bytes(self) -> int:
        """Bytes held of a line that has not ended; 0 between lines."""
        return self._partial_bytes

    def receive_data(self, data: bytes) -> None:
        """Take the next bytes of the stream; what follows an oversized line is dropped."""
        if self._broken:
            return
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            if not self._keep(data, start, end):
                return
            # The common case, one whole line in one chunk, joins nothing.
            parts, self._parts, self._partial_bytes = self._parts, [], 0
            self._lines.append(parts[0] if len(parts) == 1 else b"".join(parts))
            start = end + 1
        if start < len(data):
            self._keep(data, start, len(data))

    def _keep(self, data: bytes, start: int, end: int) -> bool:
        if self._partial_bytes + end - start > self._max_bytes:
            self._broken = True
            self._parts, self._partial_bytes = [], 0
            return False
        self._parts.append(data[start:end])
        self._partial_bytes += end - start
        return True

    def next_line(self) -> bytes | None:
        """Return the next line without its newline; None until more bytes come.

        Raises:
            FrameError: A line is longer than the limit; from then on always.
        """
        if self._lines:
            return self._lines.popleft()
        if self._broken:
            raise FrameError(
                f"a message is longer than {self._max_bytes} bytes; send less at once"
            )
        return None

    def next_frame(self) -> dict[str, Any] | None:
        """Return the next message, decoded; None until more bytes come.

        Raises:
            FrameError: The line is too long or not one JSON object. Unless `broken`,
                the next call goes on with the next line.
        """
        line = self.next_line()
        return None if line is None else decode_frame(line)


def decode_frame(line: bytes) -> dict[str, Any]:
    """Decode one line strictly.

    Raises:
        FrameError: It is not UTF-8, not JSON, not an object, a batch, too deep, or it
            has a duplicate key, a number that is not finite, or a lone surrogate.
    """
    check_depth(line)
    try:
        text = line.decode()
        value: object = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            # Escapes can spell half a surrogate pair, which no UTF-8 text can hold.
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError as error:
        raise FrameError(f"a message is not valid Unicode: {error}") from None
    except ValueError as error:
        raise FrameError(f"a message is not valid JSON: {error}") from None
    if is_array(value):
        raise FrameError("batches are not supported; send one object a line")
    if not is_object(value):
        raise FrameError("a message is not a JSON object")
    return value


def check_depth(line: bytes) -> None:
    """Refuse a line that nests deeper than `MAX_DEPTH`, before anything parses it.

    Raises:
        FrameError: It does.
    """
    # Most lines have too few brackets, quoted ones included, to nest too deep.
    if line.count(b"{") + line.count(b"[") <= MAX_DEPTH:
        return
    depth = 0
    for match in re.finditer(_STRING_OR_BRACKET, line):
        token = match.group()
        if token in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise FrameError(f"a message nests deeper than {MAX_DEPTH} levels")
        elif token in b"]}":
            depth -= 1


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"key {again!r} appears twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:40]} is out of range")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
)
