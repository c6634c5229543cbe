"""Runs inside a command: tries every way to change what is in a folder.

``changes.py FOLDER`` prints JSON: for each way ``done``, or the name of the error. The
folder is one that `tests.kernel.test_writes.canaries` made; the working folder may be
written to in between.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

folder = Path(sys.argv[1])


def opened(path: Path, flags: int, data: bytes = b"changed\n") -> None:
    """Open with *flags* and write."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        if data:
            os.write(fd, data)
    finally:
        os.close(fd)


def own(name: str) -> Path:
    """Make a file in the working folder; in read-only mode there is none to use."""
    path = Path(name)
    path.write_text("mine\n")
    return path


def grab() -> None:
    """Give a file outside a name inside, and write to it there."""
    Path("grabbed").hardlink_to(folder / "hardlinked")
    opened(Path("grabbed"), os.O_WRONLY)


def through_link() -> None:
    """Write through a symbolic link of the working folder."""
    Path("way").symlink_to(folder / "linked")
    opened(Path("way"), os.O_WRONLY | os.O_TRUNC)


CONTENT: dict[str, Callable[[], object]] = {
    "create": lambda: opened(folder / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "overwrite": lambda: opened(folder / "written", os.O_WRONLY),
    "append": lambda: opened(folder / "appended", os.O_WRONLY | os.O_APPEND),
    "open to truncate": lambda: opened(folder / "cut", os.O_WRONLY | os.O_TRUNC),
    "truncate": lambda: os.truncate(folder / "truncated", 0),
    "rename": lambda: (folder / "renamed").rename(folder / "other name"),
    "move away": lambda: (folder / "moved").rename("taken"),
    "move in": lambda: own("given").rename(folder / "given"),
    "replace": lambda: own("better").replace(folder / "replaced"),
    "link": lambda: (folder / "hard link").hardlink_to(own("linked from")),
    "link out and write": grab,
    "write through a link": through_link,
    "symlink": lambda: (folder / "symlink").symlink_to("/etc/passwd"),
    "mkdir": (folder / "subfolder").mkdir,
    "rmdir": (folder / "empty").rmdir,
    "unlink": (folder / "removed").unlink,
    "mkfifo": lambda: os.mkfifo(folder / "fifo"),
    "nameless file": lambda: opened(folder, os.O_TMPFILE | os.O_WRONLY),
    "by /proc/self/root": lambda: opened(
        Path(f"/proc/self/root{folder}/by proc"), os.O_WRONLY | os.O_CREAT
    ),
}
METADATA: dict[str, Callable[[], object]] = {
    "chmod": lambda: (folder / "chmodded").chmod(0o751),
    "chmod of the folder": lambda: folder.chmod(0o711),
    "chown": lambda: os.chown(folder / "chowned", os.getuid(), os.getgid()),
    "utime": lambda: os.utime(folder / "touched", (1, 1)),
    "setxattr": lambda: os.setxattr(folder / "tagged", "user.canary", b"changed"),
}


def main() -> None:
    """Try everything."""
    found: dict[str, str] = {}
    for name, change in (CONTENT | METADATA).items():
        try:
            change()
            found[name] = "done"
        except OSError as error:
            found[name] = errno.errorcode[error.errno or 0]
    print(json.dumps(found))


main()
