"""From what a caller asks to what will be run: defaults and caps, nothing else.

The daemon's executor and the client resolve with the same function, so a spec means the
same on both sides of the socket.
"""

from __future__ import annotations

import math
import posixpath
from dataclasses import replace

from bashd.core.errors import InvalidParamsError
from bashd.core.model import ExecRequest, ExecSpec


def resolve_request(
    request: ExecRequest,
    *,
    cwd: str,
    timeout_ms: float,
    max_timeout_ms: float,
    max_output_bytes: int,
) -> ExecSpec:
    """Apply defaults and caps to *request*.

    Args:
        request: What the caller gave.
        cwd: Default workdir, and what a relative one is relative to.
        timeout_ms: Default timeout; the cap holds for it too.
        max_timeout_ms: Cap of the timeout.
        max_output_bytes: Default cap of stdout.

    Raises:
        InvalidParamsError: ``request.timeout_ms`` or ``request.stdout_max_bytes`` is
            not a positive finite number, or the command holds a NUL.
    """
    if "\0" in request.command:
        raise InvalidParamsError(
            "the command holds a NUL character, which no argument of a process can"
        )
    wanted = timeout_ms if request.timeout_ms is None else request.timeout_ms
    _require_positive("timeoutMs", wanted)
    if request.stdout_max_bytes is not None:
        _require_positive("stdoutMaxBytes", request.stdout_max_bytes)
    return ExecSpec(
        command=request.command,
        # join, not normpath: `link/..` means where chdir lands.
        workdir=posixpath.join(cwd, request.workdir) if request.workdir else cwd,
        timeout_ms=_plain(min(wanted, max_timeout_ms)),
        stdout_max_bytes=request.stdout_max_bytes or max_output_bytes,
        owner=request.owner,
        sandbox_mode=request.sandbox_mode,
        policy=request.policy,
        stdin=request.stdin,
        env=request.env,
        managed_env=request.managed_env,
    )


def with_wall_limit(
    spec: ExecSpec, wall_s: float | None, asked_ms: float | None
) -> ExecSpec:
    """Return *spec* with the time that its policy gives it.

    Args:
        spec: Resolved.
        wall_s: The policy's limit; None leaves the executor's default and cap.
        asked_ms: The timeout that the caller asked for, before any cap.
    """
    if wall_s is None:
        return spec
    limit_ms = wall_s * 1000
    wanted = limit_ms if asked_ms is None else min(asked_ms, limit_ms)
    return replace(spec, timeout_ms=_plain(wanted))


def with_job_limit(spec: ExecSpec, left_s: float) -> ExecSpec:
    """Return *spec* with no more time than its job has left, rounded up."""
    return replace(spec, timeout_ms=min(spec.timeout_ms, math.ceil(left_s * 1000)))


def _require_positive(name: str, value: float) -> None:
    # bool is an int to isinstance, and True no number of milliseconds.
    if isinstance(value, bool) or not (math.isfinite(value) and value > 0):
        raise InvalidParamsError(f"request.{name} must be a positive finite number")


def _plain(value: float) -> int | float:
    # 100.0 is shown as 100ms.
    return int(value) if float(value).is_integer() else value
