"""The error tree. The class says whose fault it was; each class has one wire code.

``CallerError``: fix the request. ``Refused``: policy said no. ``HostError``: this
machine cannot do it, and the message says what to do about that. ``InternalError``:
a bug in bashd. The client raises the same class that the daemon raised.
"""

from __future__ import annotations


class BashdError(Exception):
    """Root of every error that crosses the socket.

    Args:
        message: One line for a person; says what to do where something can be done.
    """

    code = "INTERNAL"
    rpc_code = -32603
    """JSON-RPC error number. Source: JSON-RPC 2.0, section 5.1."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class CallerError(BashdError):
    """The request was wrong; the caller can fix it."""

    code = "INVALID_REQUEST"
    rpc_code = -32600


class FrameError(CallerError):
    """Bytes that are not one JSON-RPC message within the size limit."""

    code = "BAD_FRAME"
    rpc_code = -32700


class UnknownMethodError(CallerError):
    """The method is not part of this protocol version."""

    code = "UNKNOWN_METHOD"
    rpc_code = -32601


class InvalidParamsError(CallerError):
    """A parameter is missing, of the wrong type or out of range."""

    code = "INVALID_PARAMS"
    rpc_code = -32602


class UnknownSessionError(CallerError):
    """No session of this caller has that id."""

    code = "UNKNOWN_SESSION"
    rpc_code = -32010


class UnknownTaskError(CallerError):
    """No task of this caller has that id."""

    code = "UNKNOWN_TASK"
    rpc_code = -32011


class UnknownApprovalError(CallerError):
    """No question of this caller waits under that id."""

    code = "UNKNOWN_APPROVAL"
    rpc_code = -32015


class StartError(CallerError):
    """The command could not be started: missing workdir, unusable path, no bash.

    Never used for a broken sandbox; see `SandboxUnavailableError`.
    """

    code = "START_FAILED"
    rpc_code = -32012


class AbortedError(BashdError):
    """The caller withdrew the call before or while it ran."""

    code = "TOOL_ABORTED"
    rpc_code = -32013


class ConfigError(CallerError):
    """A config or policy file is wrong; names the file, the key and the fix."""

    code = "BAD_CONFIG"
    rpc_code = -32014


class Refused(BashdError):  # noqa: N818 - the field's word, and not always an error
    """Policy said no. Asking again unchanged gives the same answer."""

    code = "REFUSED"
    rpc_code = -32020


class NotAllowedError(Refused):
    """This caller may not do that (another user, a confined caller, a ceiling)."""

    code = "NOT_ALLOWED"
    rpc_code = -32021


class LimitError(Refused):
    """A quota or bound of the daemon is reached."""

    code = "LIMIT"
    rpc_code = -32022


class TimeOverError(Refused):
    """The time that a policy gives a whole job was over; nothing was run."""

    code = "TIME_OVER"
    rpc_code = -32023


class HostError(BashdError):
    """This machine cannot do it; the message carries advice."""

    code = "HOST"
    rpc_code = -32030


class SandboxUnavailableError(HostError):
    """No backend can confine; nothing was run."""

    code = "SANDBOX_UNAVAILABLE"
    rpc_code = -32031


class RunnerFailedError(HostError):
    """The cell broke before or while it ran the command (proved out of band)."""

    code = "RUNNER_FAILED"
    rpc_code = -32032


class ConnectError(HostError):
    """The client cannot reach a daemon."""

    code = "CONNECT_FAILED"
    rpc_code = -32033


class InternalError(BashdError):
    """A bug in bashd; the daemon's log has the traceback."""

    code = "INTERNAL"
    rpc_code = -32603


def _tree(cls: type[BashdError]) -> list[type[BashdError]]:
    found = [cls]
    for child in cls.__subclasses__():
        found.extend(_tree(child))
    return found


ERROR_BY_CODE: dict[str, type[BashdError]] = {
    cls.code: cls for cls in reversed(_tree(BashdError))
}
"""Wire code to class; `BashdError` and `InternalError` share ``INTERNAL``."""
ERROR_BY_CODE["INTERNAL"] = InternalError


def error_from_wire(code: str, message: str) -> BashdError:
    """Rebuild the error a peer sent; an unknown code becomes `InternalError`."""
    return ERROR_BY_CODE.get(code, InternalError)(message)
