"""The two tables: who may connect, and what a confined caller may ask for."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.errors import NotAllowedError
from bashd.core.model import Mode
from bashd.daemon.access import ConfinedAs, check_connector, narrow
from bashd.protocol.messages import (
    METHODS,
    Empty,
    ExecCancelParams,
    ExecParams,
    ExecResizeParams,
    ExecStdinParams,
    InitializeParams,
    PolicyParams,
    SessionAttachParams,
    SessionModeParams,
    SessionOpenParams,
    SessionParams,
    TaskListParams,
    TaskLogsParams,
    TaskParams,
)

OWN = "own-session"
WORKSPACE = ConfinedAs(OWN, Mode.WORKSPACE_WRITE)
UNKNOWN = ConfinedAs()
TASKS = {
    "own": ConfinedAs(OWN, Mode.READ_ONLY),
    "wider": ConfinedAs(OWN, Mode.DANGER_FULL_ACCESS),
    "other": ConfinedAs("other-session", Mode.READ_ONLY),
}
SAMPLES: dict[type, Any] = {
    InitializeParams: InitializeParams(1),
    SessionOpenParams: SessionOpenParams("/"),
    SessionParams: SessionParams(OWN),
    SessionAttachParams: SessionAttachParams(OWN),
    SessionModeParams: SessionModeParams(OWN, Mode.READ_ONLY),
    ExecParams: ExecParams("true", session_id=OWN),
    ExecCancelParams: ExecCancelParams(1),
    ExecStdinParams: ExecStdinParams(1),
    ExecResizeParams: ExecResizeParams(1, 24, 80),
    TaskParams: TaskParams("own"),
    TaskListParams: TaskListParams(OWN),
    TaskLogsParams: TaskLogsParams("own"),
    PolicyParams: PolicyParams("ci"),
}


def sample(method: str) -> Any:
    """Return the most harmless parameters of a method.

    Of a kind that no rule mentions, any object does: it must be refused unseen.
    """
    return SAMPLES.get(METHODS[method][0], Empty())


def allowed(method: str, params: object, confined: ConfinedAs) -> bool:
    try:
        narrow(method, params, confined, TASKS.get)
    except NotAllowedError:
        return False
    return True


# Connectors


@pytest.mark.parametrize("uid", [0, 1001])
def test_a_users_daemon_serves_that_user_and_not_even_root(uid: int):
    check_connector(1000, frozenset(), own_uid=1000, allow_root=True, socket_gid=None)
    with pytest.raises(NotAllowedError, match="serves uid 1000 only"):
        check_connector(
            uid, frozenset({1000}), own_uid=1000, allow_root=True, socket_gid=None
        )


@pytest.mark.parametrize(
    ("uid", "groups", "allow_root", "socket_gid", "served"),
    [
        (0, set[int](), True, None, True),
        (0, set[int](), True, 50, True),
        (0, {0, 50}, False, 50, False),
        (1000, {1000}, True, None, False),
        (1000, {1000}, True, 50, False),
        (1000, {1000, 50}, True, 50, True),
        (1000, {1000, 50}, False, 50, True),
        # The group of root is nobody's right: without a socket group, root alone.
        (1000, {0}, True, None, False),
    ],
)
def test_roots_daemon_serves_root_and_the_sockets_group(
    uid: int,
    groups: set[int],
    allow_root: bool,
    socket_gid: int | None,
    served: bool,
):
    expected = contextlib.nullcontext() if served else pytest.raises(NotAllowedError)
    with expected:
        check_connector(
            uid,
            frozenset(groups),
            own_uid=0,
            allow_root=allow_root,
            socket_gid=socket_gid,
        )


# Confined callers


def test_a_confined_caller_of_no_known_cell_may_ask_how_the_daemon_is_and_no_more():
    served = {m for m in METHODS if allowed(m, sample(m), UNKNOWN)}
    assert served == {
        *("initialize", "daemon.status", "exec.cancel", "exec.stdin", "exec.resize"),
    }


def test_the_refusal_names_the_reason_and_the_way_out():
    with pytest.raises(NotAllowedError) as caught:
        narrow("exec.run", ExecParams("true"), UNKNOWN, TASKS.get)
    assert "no_new_privs" in caught.value.message
    assert "confined_callers" in caught.value.message


def test_from_a_known_cell_only_what_stays_in_it_is_served():
    served = {m for m in METHODS if allowed(m, sample(m), WORKSPACE)}
    assert served == {
        *("initialize", "daemon.status", "exec.cancel", "exec.stdin", "exec.resize"),
        *("exec.run", "exec.start", "session.get", "session.attach"),
        *("task.get", "task.list", "task.owner", "task.read", "task.logs"),
        *("task.kill", "task.wait", "task.subscribe"),
    }


@pytest.mark.parametrize("method", ["exec.run", "exec.start"])
@given(
    ceiling=st.sampled_from(Mode),
    wanted=st.none() | st.sampled_from(Mode),
    session=st.none() | st.sampled_from([OWN, "other"]),
    policy=st.none() | st.just("ci"),
)
def test_no_command_of_a_confined_caller_reaches_further_than_it(
    method: str,
    ceiling: Mode,
    wanted: Mode | None,
    session: str | None,
    policy: str | None,
):
    params = ExecParams("id", session_id=session, mode=wanted, policy=policy)
    try:
        given_on = narrow(method, params, ConfinedAs(OWN, ceiling), TASKS.get)
    except NotAllowedError:
        wider = wanted is not None and wanted.is_wider_than(ceiling)
        assert wider or session != OWN or policy is not None
        return
    assert isinstance(given_on, ExecParams)
    assert given_on.session_id == OWN
    assert given_on.policy is None
    # Never left to the session's own mode, which may be wider.
    assert given_on.mode is not None
    assert not given_on.mode.is_wider_than(ceiling)
    assert given_on.mode in (wanted, ceiling)


@pytest.mark.parametrize("task_id", ["wider", "other", "no-such-task"])
def test_tasks_that_reach_further_look_like_tasks_that_are_not_there(task_id: str):
    texts: set[str] = set()
    for params in (TaskParams(task_id), TaskLogsParams(task_id)):
        method = "task.kill" if isinstance(params, TaskParams) else "task.logs"
        with pytest.raises(NotAllowedError) as caught:
            narrow(method, params, WORKSPACE, TASKS.get)
        texts.add(caught.value.message.replace(task_id, "ID").replace(method, "M"))
    assert texts == {
        "M is refused: a confined caller may use tasks of its own session that reach no"
        " further than itself, and ID is none"
    }


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session.get", SessionParams("other")),
        ("session.attach", SessionAttachParams("other")),
        ("task.subscribe", SessionParams("other")),
        ("task.list", TaskListParams("other")),
        ("task.list", TaskListParams(None)),
        ("session.close", SessionParams(OWN)),
    ],
)
def test_other_sessions_and_the_end_of_its_own_are_out_of_reach(
    method: str, params: object
):
    assert not allowed(method, params, WORKSPACE)


def test_attaching_cannot_change_the_environment_of_later_commands():
    params = SessionAttachParams(OWN, ambient={"BASH_ENV": "/w/evil"})
    attached = narrow("session.attach", params, WORKSPACE, TASKS.get)
    assert attached == SessionAttachParams(OWN, ambient=None)
