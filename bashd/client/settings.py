"""What a client knows of its daemon and its session, and how it gets the session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import bashd.client.calls as calls  # noqa: PLR0402 - `from` would import ourselves
from bashd.core.errors import InvalidParamsError
from bashd.core.model import ExecRequest, ExecSpec, Mode
from bashd.core.resolve import resolve_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bashd.client.calls import Call
    from bashd.protocol.messages import InitializeResult, SessionInfo


def open_or_attach(
    *,
    cwd: str | None,
    session: str | None,
    mode: Mode | str | None,
    policy: str | None,
    environ: Mapping[str, str],
    far: bool = False,
) -> Call[SessionInfo]:
    """Return the call that gives a new client its session.

    Args:
        cwd: Folder of a new session.
        session: Id of one to come back to instead.
        mode: Of a new session.
        policy: Of a new session.
        environ: For the session's commands.
        far: The daemon is on another machine.

    Raises:
        InvalidParamsError: Something for a new session stands beside *session*.
    """
    if session is None:
        return calls.open_session(
            cwd, environ=environ, mode=mode, policy=policy, far=far
        )
    if cwd is not None or mode is not None or policy is not None:
        raise InvalidParamsError(
            "cwd, mode and policy are for a new session; an existing one has its own"
        )
    return calls.attach_session(session, environ=environ)


class Settings:
    """Enough of daemon and session to resolve requests without asking."""

    def __init__(self, hello: InitializeResult, session: SessionInfo) -> None:
        self.hello = hello
        self.session = session

    @property
    def sandbox_mode(self) -> Mode | None:
        """Mode of a call that names none; None when this daemon never confines."""
        if self.hello.executor.sandbox_mode is None:
            return None
        if self.session.mode_override is None:
            return self.session.mode
        return self.hello.executor.sandbox_mode

    def resolve(self, request: ExecRequest) -> ExecSpec:
        """Apply defaults and caps; see `bashd.core.executor.Executor.resolve`."""
        defaults = self.hello.executor
        return resolve_request(
            request,
            cwd=self.session.cwd,
            timeout_ms=defaults.timeout_ms,
            max_timeout_ms=defaults.max_timeout_ms,
            max_output_bytes=defaults.max_output_bytes,
        )

    def as_spec(self, command: str | ExecSpec, options: dict[str, Any]) -> ExecSpec:
        """Return what `run` and `start` were given as a spec.

        Args:
            command: A command for bash, or a spec that is taken as it is.
            options: Fields of `ExecRequest` that go with a command.

        Raises:
            InvalidParamsError: A value is out of range, or options stand beside a spec.
        """
        given = {name: value for name, value in options.items() if value is not None}
        if isinstance(command, ExecSpec):
            if given:
                raise InvalidParamsError(
                    f"{', '.join(given)}: options go with a command, not with a spec"
                )
            return command
        if "sandbox_mode" in given:
            given["sandbox_mode"] = calls.as_mode(given["sandbox_mode"])
        return self.resolve(ExecRequest(command, **given))
