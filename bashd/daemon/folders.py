"""The daemon's and the sessions' folders on disk: made, handed to the peer, removed.

Layout below ``state_dir`` (contract: output and scratch never lie in a shared /tmp)::

    lib/<digest>/            the launcher's code
    void/  void-file         stand-ins for what is masked, mode 0000
    sessions/<id>/           the peer's, 0700
        tmp/  var-tmp/       the session's private /tmp and /var/tmp
        home/                its home, where a policy makes that private
        out/                 output files, readable in the session's cells

A session's folder is made by the daemon in a parent that only the daemon may write
to, then given to the peer; everything below it is made with the peer's own rights.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bashd.core.confinement import Places, Plan
from bashd.core.errors import HostError
from bashd.daemon import code
from bashd.daemon.identity import Identity, run_as
from bashd.daemon.removal import remove_tree

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DaemonFolders:
    """What all sessions share."""

    state_dir: Path
    socket: Path
    lib_dir: Path

    @property
    def sessions_dir(self) -> Path:
        """Parent of the sessions' folders."""
        return self.state_dir / "sessions"

    def places(self, session_id: str) -> Places:
        """Return the paths of one session."""
        folder = self.sessions_dir / session_id
        return Places(
            state_dir=str(self.state_dir),
            session_dir=str(folder),
            tmp_dir=str(folder / "tmp"),
            var_tmp_dir=str(folder / "var-tmp"),
            home_dir=str(folder / "home"),
            output_dir=str(folder / "out"),
            lib_dir=str(self.lib_dir),
            void_dir=str(self.state_dir / "void"),
            void_file=str(self.state_dir / "void-file"),
            socket=str(self.socket),
            socket_dir=str(self.socket.parent) if self.has_own_socket_dir else None,
            socket_files=tuple(str(path) for path in self._socket_files()),
        )

    @property
    def has_own_socket_dir(self) -> bool:
        """Whether nothing but the socket, and what stands beside it, is there.

        Then the whole folder is hidden from commands. A socket may also lie in a home
        or a workspace, of which the commands must see the rest.
        """
        entries = os.listdir(self.socket.parent)  # noqa: PTH208 - names are enough
        return all(self._is_own(name) for name in entries)

    def _socket_files(self) -> list[Path]:
        entries = os.listdir(self.socket.parent)  # noqa: PTH208 - names are enough
        return [self.socket.parent / n for n in sorted(entries) if self._is_own(n)]

    def _is_own(self, name: str) -> bool:
        own = self.socket.name
        return name == own or name.startswith(f"{own}.")


def prepare(state_dir: Path, socket: Path) -> DaemonFolders:
    """Make the daemon's folders, lock them and install the launcher's code.

    Args:
        state_dir: Made unless it is there.
        socket: The daemon's; its folder is there.

    Raises:
        HostError: The state folder cannot be made, others may write to it, or another
            daemon works in it.
    """
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        state_dir = state_dir.resolve()
        info = state_dir.stat()
        if info.st_uid != os.geteuid() or info.st_mode & 0o022:
            raise HostError(
                f"{state_dir} must belong to uid {os.geteuid()} and be writable by"
                f" nobody else (mode {stat.S_IMODE(info.st_mode):o}); fix it with:"
                f" chown {os.geteuid()} {state_dir} && chmod go-w {state_dir}"
            )
        # Peers of a root daemon pass through, to their own session; they cannot list.
        state_dir.chmod(0o711 if os.geteuid() == 0 else 0o700)
        _lock(state_dir)
        sessions = state_dir / "sessions"
        sessions.mkdir(mode=0o711, exist_ok=True)
        sessions.chmod(0o711)
        void = state_dir / "void"
        if not void.exists():
            void.mkdir()
        void.chmod(0)
        void_file = state_dir / "void-file"
        if not void_file.exists():
            void_file.touch()
        void_file.chmod(0)
        lib_dir = code.install(state_dir / "lib")
        # Needed by the first cell; that it is missing is to be said now.
        code.keeper_fd()
    except OSError as error:
        raise HostError(
            f"cannot set up the state folder {state_dir}: {error}"
        ) from error
    return DaemonFolders(state_dir, socket.parent.resolve() / socket.name, lib_dir)


_SCAFFOLDING: Final = frozenset(
    {"lib", "lock", "records", "sessions", "void", "void-file"}
)
"""What every daemon makes, whatever it is used for."""
_COUNTERS: Final = "counters.json"


def remove_unused(state_dir: Path) -> None:
    """Remove a state folder that holds no session, no log and nothing of anybody's.

    For a daemon that is leaving and still has its lock.
    """
    records = state_dir / "records"
    try:
        used = (
            {entry.name for entry in state_dir.iterdir()} - _SCAFFOLDING
            or any((state_dir / "sessions").iterdir())
            or any(entry.name != _COUNTERS for entry in records.iterdir())
        )
        if used:
            return
        (records / _COUNTERS).unlink(missing_ok=True)
        shutil.rmtree(state_dir / "lib")
        for name in ("records", "sessions", "void"):
            (state_dir / name).rmdir()
        for name in ("void-file", "lock"):
            (state_dir / name).unlink()
        state_dir.rmdir()
    except OSError as error:
        logger.warning("the state folder %s stays: %s", state_dir, error)


def _lock(state_dir: Path) -> None:
    """Hold the folder for as long as this process lives."""
    fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise HostError(
            f"another daemon works in {state_dir}; give this one its own with"
            " [daemon] state_dir in its configuration"
        ) from error


async def make_session(places: Places, identity: Identity) -> None:
    """Make a session's folders, owned by the peer."""
    folder = Path(places.session_dir)
    folder.mkdir(mode=0o700, exist_ok=True)  # noqa: ASYNC240 - our own folder
    if not identity.is_own:
        os.chown(folder, identity.uid, identity.gid)

    def make() -> None:
        for path, mode in (
            (places.tmp_dir, 0o1777),
            (places.var_tmp_dir, 0o1777),
            (places.output_dir, 0o700),
            (places.home_dir, 0o700),
        ):
            Path(path).mkdir(exist_ok=True)
            Path(path).chmod(mode)

    await run_as(identity, make)


async def make_nested(places: Places, plan: Plan, identity: Identity) -> None:
    """Make mount points below the private tmp folders, as the peer.

    No link is followed: the peer's own commands may be writing there at the time.
    """
    if not plan.nested_folders and not plan.nested_files:
        return

    def make() -> None:
        for point in plan.nested_folders:
            _make_point(places.session_dir, point.split("/"), None)
        for point in plan.nested_files:
            *above, name = point.split("/")
            _make_point(places.session_dir, above, name)

    await run_as(identity, make)


def _make_point(base: str, above: list[str], file: str | None) -> None:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    current = os.open(base, flags)
    try:
        for name in above:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=current)
            try:
                inner = os.open(name, flags, dir_fd=current)
            except NotADirectoryError:
                return
            os.close(current)
            current = inner
        if file is not None:
            made = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            with contextlib.suppress(FileExistsError):
                os.close(os.open(file, made, 0o600, dir_fd=current))
    finally:
        os.close(current)


async def remove_session(places: Places, identity: Identity) -> None:
    """Remove everything of a session; as the peer, so that nothing else can go."""
    folder = places.session_dir

    def remove() -> None:
        for name in ("tmp", "var-tmp", "home", "out"):
            if os.path.lexists(f"{folder}/{name}"):
                remove_tree(f"{folder}/{name}")

    await run_as(identity, remove)
    if os.path.lexists(folder):  # noqa: ASYNC240 - our own folder
        remove_tree(folder)
