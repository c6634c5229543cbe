"""The folder a socket lies in: it decides who can reach the socket, or replace it."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from bashd.core.errors import HostError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SocketPlace:
    """Where the socket shall be and who may connect."""

    path: str
    gid: int | None = None
    """Group whose members may (root daemons only); None: this uid alone."""

    @property
    def folder(self) -> Path:
        """The folder the socket lies in."""
        return Path(self.path).parent

    @property
    def folder_mode(self) -> int:
        """Mode of a folder that is for the socket alone.

        Others pass but cannot look: beside a group's socket lies that of the metrics,
        whose readers need not be of the group.
        """
        return 0o700 if self.gid is None else 0o751

    @property
    def parent_mode(self) -> int:
        """Mode of folders that have to be made on the way there."""
        return 0o700 if self.gid is None else 0o755

    @property
    def socket_mode(self) -> int:
        """Mode of the socket."""
        return 0o600 if self.gid is None else 0o660


def prepare_folder(place: SocketPlace) -> None:
    """Make the socket's folder, or make sure that the one there can be trusted.

    A folder that is new, or ours and for this socket alone, gets the mode and group of
    *place*; any other is left as it is.

    Raises:
        HostError: It cannot be made, or others could put a socket of theirs there.
    """
    folder = place.folder
    try:
        made = _make(folder, place.parent_mode)
        found = folder.stat()
    except OSError as error:
        raise HostError(
            f"cannot use {folder} for the socket: {error.strerror};"
            " choose another --socket"
        ) from None
    if found.st_uid not in (0, os.geteuid()):
        raise HostError(
            f"{folder} belongs to uid {found.st_uid}, who could replace the socket;"
            " choose another --socket"
        )
    if made or _is_for_this_alone(place, found):
        _arrange(place, found)
    elif found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise HostError(
            f"others can write to {folder} and replace the socket; chmod go-w {folder}"
        )
    elif place.gid is not None and not _lets_pass(place.gid, found):
        logger.warning(
            "members of the group cannot reach %s: chgrp %d %s && chmod g+x %s",
            *(place.path, place.gid, folder, folder),
        )


def _make(folder: Path, parent_mode: int) -> bool:
    """Make *folder* and the folders above it; say whether it was not there."""
    if folder.is_dir():
        return False
    if _make(folder.parent, parent_mode):
        folder.parent.chmod(parent_mode)  # whatever the umask
    folder.mkdir(mode=0o700, exist_ok=True)
    return True


def _is_for_this_alone(place: SocketPlace, found: os.stat_result) -> bool:
    if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
        return False
    name = Path(place.path).name
    return all(
        entry == name or entry.startswith(f"{name}.")
        for entry in os.listdir(place.folder)  # noqa: PTH208 - names are enough
    )


def _arrange(place: SocketPlace, found: os.stat_result) -> None:
    gid = place.gid
    if gid is not None and found.st_gid != gid:
        os.chown(place.folder, -1, gid)
    if stat.S_IMODE(found.st_mode) != place.folder_mode:
        place.folder.chmod(place.folder_mode)


def _lets_pass(gid: int, found: os.stat_result) -> bool:
    bit = stat.S_IXGRP if found.st_gid == gid else stat.S_IXOTH
    return bool(found.st_mode & bit)
