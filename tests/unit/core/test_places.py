"""Paths are chosen from facts, the same for client and daemon."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bashd.core.errors import InvalidParamsError
from bashd.core.places import (
    MAX_SOCKET_PATH_BYTES,
    check_socket_path,
    state_folder,
    user_socket,
)


def owned_by(uid: int | None):
    return lambda _folder: uid


def test_the_runtime_folder_is_used_when_it_is_the_users_own() -> None:
    environ = {"XDG_RUNTIME_DIR": "/run/user/7"}
    path = user_socket(environ, uid=7, home="/home/u", owner_of=owned_by(7))
    assert path == "/run/user/7/bashd/bashd.sock"


@pytest.mark.parametrize("owner", [None, 0, 8])
def test_a_runtime_folder_of_somebody_else_or_nobody_does_not_count(
    owner: int | None,
) -> None:
    environ = {"XDG_RUNTIME_DIR": "/run/user/7"}
    path = user_socket(environ, uid=7, home="/home/u", owner_of=owned_by(owner))
    assert path == "/home/u/.bashd/run/bashd.sock"


@pytest.mark.parametrize("environ", [{}, {"XDG_RUNTIME_DIR": "relative"}])
def test_without_a_runtime_folder_the_socket_is_at_home(
    environ: dict[str, str],
) -> None:
    path = user_socket(environ, uid=7, home="/home/u", owner_of=owned_by(7))
    assert path == "/home/u/.bashd/run/bashd.sock"


def test_state_is_the_machines_for_root_and_the_users_for_a_user() -> None:
    assert state_folder({}, uid=0, home="/root") == "/var/lib/bashd"
    assert state_folder({}, uid=7, home="/h") == "/h/.local/state/bashd"
    assert state_folder({"XDG_STATE_HOME": "/s"}, uid=7, home="/h") == "/s/bashd"
    assert (
        state_folder({"XDG_STATE_HOME": "s"}, uid=7, home="/h")
        == "/h/.local/state/bashd"
    )


@settings(deadline=None)
@given(st.text("aé", max_size=150))
def test_a_path_passes_exactly_when_the_kernel_would_take_it(tail: str) -> None:
    path = f"/{tail}"
    if len(path.encode()) <= MAX_SOCKET_PATH_BYTES:
        assert check_socket_path(path) == path
    else:
        with pytest.raises(InvalidParamsError, match="at most 107"):
            check_socket_path(path)


@pytest.mark.parametrize("path", ["", "bashd.sock", "/a\0b"])
def test_no_path_of_a_socket(path: str) -> None:
    with pytest.raises(InvalidParamsError, match="absolute path"):
        check_socket_path(path)
