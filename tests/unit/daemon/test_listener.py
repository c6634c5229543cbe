"""One daemon owns a socket: stale, live, foreign, racing and vanished ones."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bashd.core.errors import HostError, InvalidParamsError
from bashd.daemon.listener import AlreadyRunningError, Listener, adopt, bind
from bashd.daemon.socket_folder import SocketPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to change owners")
_OTHER_GID = 65534


@pytest.fixture(autouse=True)
def daemons_umask() -> Iterator[None]:
    """The umask a daemon has."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "b.sock"


def place(path: Path, gid: int | None = None) -> SocketPlace:
    return SocketPlace(str(path), gid)


def names(path: Path) -> set[str]:
    return {entry.name for entry in path.parent.iterdir()}


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
        return True


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make_stale(path: Path) -> None:
    """Leave the socket of a daemon that was killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    assert not connects(path)


# Places and modes


def test_a_users_socket_lies_in_a_private_folder(path: Path):
    listener = bind(place(path))
    assert connects(path)
    assert mode_of(path.parent) == 0o700
    assert mode_of(path) == 0o600
    listener.release()


def test_nothing_is_left_after_release(path: Path):
    bind(place(path)).release()
    assert names(path) == set()


@needs_root
def test_a_groups_socket_is_for_root_and_that_group(tmp_path: Path):
    path = tmp_path / "made" / "on-the-way" / "b.sock"
    listener = bind(place(path, _OTHER_GID))
    folder = path.parent
    assert (mode_of(folder), folder.stat().st_gid) == (0o751, _OTHER_GID)
    assert (mode_of(path), path.stat().st_gid) == (0o660, _OTHER_GID)
    assert path.stat().st_uid == 0
    assert mode_of(folder.parent) == 0o755
    assert listener.gid == _OTHER_GID
    listener.release()


@needs_root
def test_an_empty_folder_of_ours_is_opened_for_the_group(path: Path):
    path.parent.mkdir(mode=0o700)
    listener = bind(place(path, _OTHER_GID))
    assert (mode_of(path.parent), path.parent.stat().st_gid) == (0o751, _OTHER_GID)
    listener.release()


@needs_root
def test_a_folder_with_other_things_in_it_keeps_its_mode(path: Path):
    path.parent.mkdir(mode=0o700)
    (path.parent / "somebody's").touch()
    listener = bind(place(path, _OTHER_GID))
    assert mode_of(path.parent) == 0o700
    listener.release()


def test_a_folder_others_can_write_to_is_refused(path: Path):
    path.parent.mkdir()
    (path.parent / "something").touch()
    path.parent.chmod(0o777)
    with pytest.raises(HostError, match="chmod go-w"):
        bind(place(path))


def test_a_sticky_folder_serves(path: Path):
    path.parent.mkdir()
    path.parent.chmod(0o1777)
    listener = bind(place(path))
    assert mode_of(path.parent) == 0o1777
    assert mode_of(path) == 0o600
    listener.release()


@needs_root
def test_a_folder_of_somebody_else_is_refused(path: Path):
    path.parent.mkdir()
    os.chown(path.parent, 65534, 65534)
    with pytest.raises(HostError, match="belongs to uid 65534"):
        bind(place(path))


def test_a_path_of_108_bytes_is_a_clear_error(tmp_path: Path):
    folder = str(tmp_path) + "/"
    longest = Path(folder + "x" * (107 - len(folder)))
    bind(place(longest)).release()
    with pytest.raises(InvalidParamsError, match="108 bytes"):
        bind(place(Path(f"{longest}x")))


# Other daemons


def test_a_stale_socket_is_replaced(path: Path):
    make_stale(path)
    listener = bind(place(path))
    assert connects(path)
    listener.release()


def test_a_live_socket_is_never_stolen(path: Path):
    first = bind(place(path))
    before = path.stat().st_ino
    with pytest.raises(AlreadyRunningError, match=str(path)):
        bind(place(path))
    assert path.stat().st_ino == before
    assert connects(path)
    first.release()


def test_a_live_socket_of_something_else_is_never_stolen(path: Path):
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(path))
        foreign.listen()
        with pytest.raises(AlreadyRunningError):
            bind(place(path))
        assert connects(path)
    assert names(path) == {"b.sock"}


def test_a_socket_whose_backlog_is_full_counts_as_live(path: Path):
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as foreign, socket.socket(socket.AF_UNIX) as one:
        foreign.bind(str(path))
        foreign.listen(0)
        one.connect(str(path))
        with pytest.raises(AlreadyRunningError):
            bind(place(path))


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_is_left_alone(path: Path, kind: str):
    path.parent.mkdir()
    match kind:
        case "file":
            path.write_text("precious")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to("/etc/passwd")
    with pytest.raises(HostError, match="not a socket"):
        bind(place(path))
    assert path.is_symlink() or path.exists()


def test_a_daemon_that_is_ending_is_waited_for(path: Path):
    first = bind(place(path))
    first.stop()
    second: list[Listener] = []
    waiting = threading.Thread(target=lambda: second.append(bind(place(path))))
    waiting.start()
    # Its socket is gone, but its tasks may not be: nobody takes the path yet.
    waiting.join(0.1)
    assert not second
    first.release()
    waiting.join()
    assert connects(path)
    second[0].release()


def test_an_owner_that_does_not_listen_is_named(path: Path):
    first = bind(place(path))
    first.stop()
    with pytest.raises(HostError, match=f"pid {os.getpid()}"):
        bind(place(path), wait_s=0.05)
    first.release()


def test_a_lock_on_a_file_that_is_gone_is_no_ownership(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    owner = Path(f"{path}.owner")
    lock = fcntl.flock
    locked: list[int] = []

    def lock_after_the_owner_left(fd: int, operation: int) -> None:
        if not locked:
            owner.unlink()  # what a daemon does last, after we had opened the file
        locked.append(fd)
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", lock_after_the_owner_left)
    listener = bind(place(path))
    assert len(locked) == 2
    assert owner.exists()
    listener.release()


def test_of_daemons_that_start_at_once_over_a_stale_socket_one_owns_it(path: Path):
    make_stale(path)
    code = (
        "import sys\n"
        "from bashd.daemon.listener import AlreadyRunningError, bind\n"
        "from bashd.daemon.socket_folder import SocketPlace\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    listener = bind(SocketPlace(sys.argv[1]))\n"
        "except AlreadyRunningError:\n"
        "    print('found it running')\n"
        "else:\n"
        "    print('owns it', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("go\n")
        starter.stdin.flush()
    said: list[str] = []
    for starter in starters:
        assert starter.stdout is not None
        said.append(starter.stdout.readline().strip())
    for starter in starters:
        starter.communicate("end\n")
    assert sorted(said) == ["found it running"] * 3 + ["owns it"]


# Giving it back


def test_a_socket_that_is_not_ours_any_more_stays(path: Path):
    listener = bind(place(path))
    path.unlink()
    make_stale(path)
    replacement = path.stat().st_ino
    listener.release()
    assert path.stat().st_ino == replacement


def test_stop_if_unused_leaves_nothing(path: Path):
    listener = bind(place(path))
    assert listener.stop_if_unused(lambda: 0)
    assert not connects(path)
    listener.release()
    assert names(path) == set()


def test_stop_if_unused_keeps_a_client_that_is_connecting(path: Path):
    listener = bind(place(path))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))

        def accept_pending() -> int:
            assert not connects(path)  # nobody can begin to connect meanwhile
            listener.socket.accept()[0].close()
            return 1

        assert not listener.stop_if_unused(accept_pending)
    assert connects(path)
    listener.release()
    assert names(path) == set()


# Socket activation


def test_an_activated_socket_is_used_and_left_alone(path: Path):
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as manager:
        manager.bind(str(path))
        manager.listen()
        listener = adopt(os.dup(manager.fileno()))
        assert listener.activated
        assert listener.path == str(path)
        assert listener.stop_if_unused(lambda: 0)
        listener.release()
        # Still the manager's, and still listening.
        assert connects(path)
    assert names(path) == {"b.sock"}


@pytest.mark.parametrize("kind", ["tcp", "not listening", "abstract"])
def test_other_descriptors_are_refused(path: Path, kind: str):
    path.parent.mkdir()
    family = socket.AF_INET if kind == "tcp" else socket.AF_UNIX
    with socket.socket(family) as sock:
        if kind == "tcp":
            sock.bind(("127.0.0.1", 0))
            sock.listen()
        elif kind == "abstract":
            sock.bind(f"\0bashd-test-{os.getpid()}")
            sock.listen()
        else:
            sock.bind(str(path))
        with pytest.raises(HostError, match="ListenStream"):
            adopt(os.dup(sock.fileno()))
