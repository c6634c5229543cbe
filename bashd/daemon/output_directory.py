"""The private folder of a session's output files.

The folder belongs to the peer whose commands write there (mode 0700) and is opened
once; files are made, opened and removed by name below that descriptor, never by
path, so that nothing on the way can be exchanged. The peer may do to its own folder
what it likes: a planted link, a file with a second name, a file cut short or put
in another's place are recognised and cost only the output of that peer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from itertools import count

from bashd.core.errors import HostError

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO planted under our name must not hold the daemon up.
_FILE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NAME = re.compile(r"bashd-\d+-\d+-[0-9a-f]{12}-(stdout|stderr)\.log|session\.jsonl")


class OutputDirectory:
    """A folder of the peer that only the peer (and root) can look into.

    Args:
        path: Absolute path; made if missing. Its parent must not be the peer's to
            change.
        uid: Owner of the folder and its files; the daemon's own unless it is root.
        gid: Their group.

    Raises:
        HostError: The folder cannot be made or is not the peer's.
    """

    def __init__(self, path: str, uid: int, gid: int) -> None:
        self.path = path
        self.uid = uid
        self.gid = gid
        self._counter = count(1)
        self._fd = -1
        try:
            self._fd = self._open()
        except OSError as error:
            raise HostError(
                f"cannot use the output folder {path}: {error.strerror}; "
                "check that the state folder exists and has room"
            ) from error

    def _open(self) -> int:
        made = True
        try:
            os.mkdir(self.path, 0o700)  # noqa: PTH102 - the errno decides
        except FileExistsError:
            made = False
        fd = os.open(self.path, _DIRECTORY_FLAGS)
        try:
            if made:
                self._give_to_peer(fd)
            if os.fstat(fd).st_uid != self.uid:
                raise PermissionError(errno.EPERM, "it belongs to another user")
            os.fchmod(fd, 0o700)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _give_to_peer(self, fd: int) -> None:
        if os.geteuid() == 0:
            os.fchown(fd, self.uid, self.gid)

    def reserve_name(self, label: str) -> str:
        """Return a name nobody can foresee; *label* is ``stdout`` or ``stderr``."""
        serial, salt = next(self._counter), secrets.token_hex(6)
        return f"bashd-{os.getpid()}-{serial}-{salt}-{label}.log"

    def path_of(self, name: str) -> str:
        """Return the absolute path of the file called *name*."""
        return f"{self.path}/{name}"

    def create(self, name: str) -> int:
        """Make the file *name*, private to the peer whatever the umask is.

        Returns:
            Its descriptor, open for reading and writing; the caller closes it.

        Raises:
            OSError: The name is taken, the disk is full, no descriptor is left.
        """
        flags = _FILE_FLAGS | os.O_CREAT | os.O_EXCL
        fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        try:
            self._give_to_peer(fd)
            os.fchmod(fd, 0o600)
        except OSError:
            os.close(fd)
            self.remove(name)
            raise
        return fd

    def open(self, name: str) -> int:
        """Open the file *name* that an earlier `create` made.

        Raises:
            OSError: It is gone, or what lies there is not the peer's own plain file.
        """
        if not _NAME.fullmatch(name):
            raise OSError(errno.EINVAL, "not the name of an output file", name)
        fd = os.open(name, _FILE_FLAGS, dir_fd=self._fd)
        found = os.fstat(fd)
        # One link only: the peer could have linked somebody else's file here.
        plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        if not plain or found.st_uid != self.uid:
            os.close(fd)
            raise OSError(errno.EPERM, "not the peer's own plain file", name)
        return fd

    def holds(self, name: str, fd: int) -> bool:
        """Say whether *name* still leads to the file that *fd* has open."""
        try:
            there = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return False
        here = os.fstat(fd)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def remove(self, name: str) -> None:
        """Remove the file *name*; a missing one or an error changes nothing."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._fd)

    def close(self) -> None:
        """Let go of the folder; its files stay."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
