"""Who may connect, and what a confined caller may ask for: two pure tables.

A confined caller is a process that runs with no_new_privs, as every confined command
does (`bashd.daemon.peer` finds that out). It may do within its own cell what it can do
there anyway, and nothing that reaches further: never a wider mode, another session, an
approval, or a setting that later commands inherit. A method that the table does not
name is refused, so a new one is closed until somebody decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bashd.core.errors import NotAllowedError
from bashd.protocol.messages import (
    ExecParams,
    SessionAttachParams,
    SessionParams,
    TaskListParams,
    TaskLogsParams,
    TaskParams,
)

if TYPE_CHECKING:
    from bashd.core.model import Mode


@dataclass(frozen=True, slots=True)
class ConfinedAs:
    """How far a confined caller, or a task, reaches."""

    session_id: str | None = None
    """None: it is confined, but no live cell is known to hold it."""
    mode: Mode | None = None
    policy: str | None = None
    """Name of the policy that its cell was built from."""


ReachOfTask = Callable[[str], ConfinedAs | None]
"""Session and mode of a task of the caller's uid; None for an unknown id."""

_HARMLESS: Final = frozenset({"initialize", "daemon.status"})
"""They tell nothing about anybody's work."""
_WITHIN_CONNECTION: Final = frozenset({"exec.cancel", "exec.stdin", "exec.resize"})
"""They reach only requests of this connection, each judged when it came."""


def check_connector(
    uid: int,
    groups: frozenset[int],
    *,
    own_uid: int,
    allow_root: bool,
    socket_gid: int | None,
) -> None:
    """Say whether a process may connect, before a byte of it is read.

    Args:
        uid: The connector's.
        groups: The connector's primary and supplementary groups, from the kernel.
        own_uid: The daemon's.
        allow_root: ``[daemon] allow_root``.
        socket_gid: The group that a root daemon serves; None: root only.

    Raises:
        NotAllowedError: It may not.
    """
    if own_uid != 0:
        if uid != own_uid:
            raise NotAllowedError(
                f"this daemon serves uid {own_uid} only, you are uid {uid};"
                " start your own with `bashd serve`"
            )
    elif uid == 0:
        if not allow_root:
            raise NotAllowedError(
                "root is not served here ([daemon] allow_root = false);"
                " call as an ordinary user"
            )
    elif socket_gid is None or socket_gid not in groups:
        raise NotAllowedError(
            f"uid {uid} is not in the group this daemon serves; ask the administrator"
            " to add you to it ([daemon] group), then log in again"
        )


def narrow(
    method: str, params: object, confined: ConfinedAs, reach_of_task: ReachOfTask
) -> object:
    """Return *params* as a confined caller may use them.

    Args:
        method: A method of the protocol.
        params: Its decoded parameters.
        confined: What the caller is confined to.
        reach_of_task: Looks up a task of the caller's uid.

    Raises:
        NotAllowedError: It may not call this so; the message says why and what to do.
    """
    if method in _HARMLESS or method in _WITHIN_CONNECTION:
        return params
    ceiling = confined.mode
    if confined.session_id is None or ceiling is None:
        raise NotAllowedError(
            f"{method} is refused: the calling process runs with no_new_privs, as"
            " confined commands do, and no cell of this daemon is known to hold it;"
            " call from outside the sandbox, or have its systemd unit listed in"
            " [daemon] confined_callers"
        )
    match method, params:
        case "exec.run" | "exec.start", ExecParams():
            return _narrow_exec(method, params, confined, ceiling)
        case "session.attach", SessionAttachParams():
            _check_session(method, params.session_id, confined)
            # A session's environment outlives this call: PATH or BASH_ENV set here
            # would act in a later command of a wider mode.
            return replace(params, ambient=None, env_removed=())
        case ("session.get" | "task.subscribe", SessionParams()) | (
            "task.list",
            TaskListParams(),
        ):
            _check_session(method, params.session_id, confined)
            return params
        case (
            "task.get" | "task.owner" | "task.read" | "task.kill" | "task.wait",
            TaskParams(),
        ) | ("task.logs", TaskLogsParams()):
            reach = reach_of_task(params.task_id)
            _check_reach(method, params.task_id, reach, confined)
            return params
        case _:
            raise NotAllowedError(f"{method} is refused to a confined caller")


def _narrow_exec(
    method: str, params: ExecParams, confined: ConfinedAs, ceiling: Mode
) -> ExecParams:
    _check_session(method, params.session_id, confined)
    if params.policy is not None:
        raise NotAllowedError(
            f"{method} is refused: a confined caller cannot choose a policy"
        )
    if params.mode is None:
        # Its session's mode may be wider than the cell it speaks from.
        params = replace(params, mode=ceiling)
    elif params.mode.is_wider_than(ceiling):
        raise NotAllowedError(
            f"{method} is refused: {params.mode} is wider than {ceiling}, to which"
            " the calling process is confined"
        )
    # And so may its session's policy: a call may have named a narrower one.
    return replace(params, policy=confined.policy)


def _check_session(method: str, session_id: str | None, confined: ConfinedAs) -> None:
    if session_id != confined.session_id:
        raise NotAllowedError(
            f"{method} is refused: a confined caller may use its own session only;"
            " name it (BASHD_SESSION_ID)"
        )


def _check_reach(
    method: str, task_id: str, reach: ConfinedAs | None, confined: ConfinedAs
) -> None:
    # One text for every reason: which ids exist elsewhere is not its business.
    if (
        reach is None
        or reach.session_id != confined.session_id
        or reach.mode is None
        or confined.mode is None
        or reach.mode.is_wider_than(confined.mode)
    ):
        raise NotAllowedError(
            f"{method} is refused: a confined caller may use tasks of its own session"
            f" that reach no further than itself, and {task_id} is none"
        )
