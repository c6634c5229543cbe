"""Which daemon a client finds, and which it refuses to talk to."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from bashd.client.ambient import ambient_of
from bashd.client.locate import dial, find_daemon, own_socket
from bashd.client.reach import reach_daemon
from bashd.core.errors import ConnectError, InvalidParamsError, NotAllowedError
from tests.unit.client.wire_server import serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.client.wire_server import WireServer


def test_the_socket_that_is_named_wins_over_the_environment(server: WireServer) -> None:
    found = find_daemon(str(server.path), {"BASHD_SOCKET": "/nowhere"})
    assert found.connection is not None
    assert found.connection.getpeername() == str(server.path)
    found.connection.close()


def test_a_relative_socket_is_below_the_current_folder(
    server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(server.path.parent)
    found = find_daemon("bashd.sock", {})
    assert found.connection is not None
    found.connection.close()


@pytest.mark.parametrize(("named", "variable"), [(True, False), (False, True)])
def test_a_dead_socket_that_was_asked_for_is_an_error_and_nothing_else_is_tried(
    tmp_path: Path, named: bool, variable: bool
) -> None:
    path = str(tmp_path / "gone.sock")
    environ = {"HOME": str(tmp_path)} | ({"BASHD_SOCKET": path} if variable else {})
    with pytest.raises(ConnectError, match=r"no daemon answers on .*gone\.sock"):
        reach_daemon(path if named else None, environ=environ)
    assert list(tmp_path.iterdir()) == []


def test_the_users_own_daemon_is_found_at_home(tmp_path: Path) -> None:
    folder = tmp_path / ".bashd" / "run"
    folder.mkdir(parents=True)
    with serving(folder), reach_daemon(environ={"HOME": str(tmp_path)}) as connection:
        assert connection.getpeername() == str(folder / "bashd.sock")


def test_the_runtime_folder_comes_before_home(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    assert own_socket(environ) == str(tmp_path / ".bashd/run/bashd.sock")
    (tmp_path / "run").mkdir()
    assert own_socket(environ) == str(tmp_path / "run/bashd/bashd.sock")


def test_without_a_daemon_and_without_leave_to_start_one_both_places_are_named(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConnectError) as caught:
        reach_daemon(autostart=False, environ={"HOME": str(tmp_path)})
    assert str(tmp_path / ".bashd/run/bashd.sock") in caught.value.message
    assert "/run/bashd/bashd.sock" in caught.value.message
    assert "bashd serve" in caught.value.message


def test_a_stale_socket_is_no_daemon(tmp_path: Path) -> None:
    path = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
    assert path.exists()
    assert dial(str(path)) is None


def test_a_path_that_is_too_long_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidParamsError, match="at most 107"):
        find_daemon(str(tmp_path / ("x" * 120)), {})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_a_server_of_another_user_gets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    child = os.fork()
    if child == 0:
        # The kernel notes who listens at the time of listen().
        os.setresuid(65534, 65534, 65534)
        listener.listen()
        os._exit(0)
    os.waitpid(child, 0)
    with listener, pytest.raises(NotAllowedError, match="runs as uid 65534"):
        dial(str(path))


def test_credentials_and_what_json_cannot_carry_stay_here() -> None:
    environ = {"PATH": "/bin", "API_KEY": "x", "ODD": "\udcff", "BASHD_SOCKET": "/s"}
    kept, removed = ambient_of(environ)
    assert kept == {"PATH": "/bin"}
    assert removed == ("API_KEY", "BASHD_SOCKET", "ODD")


def test_a_name_that_is_not_unicode_is_reported_in_a_form_that_can_be_sent() -> None:
    kept, removed = ambient_of({"A\udcff": "x"})
    assert kept == {}
    assert removed == ("A\\udcff",)
