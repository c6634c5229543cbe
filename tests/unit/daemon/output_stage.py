"""What the output tests share: folders, stores and pipes, cleaned up after."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from bashd.daemon.output import OutputDirectory, StreamStore


class Stage:
    """A folder for stores; its limits are small unless a test says otherwise."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "output"
        self.directory = OutputDirectory(str(self.folder), os.geteuid(), os.getegid())

    def store(self, label="stdout", *, in_file=False, cap=10, spill=10_000, **more):
        return StreamStore(
            label,
            directory=self.directory,
            max_bytes=cap,
            max_spill_bytes=spill,
            file_from_start=in_file,
            **more,
        )

    def files(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    def only_file(self) -> bytes:
        (path,) = self.files()
        return path.read_bytes()


@contextlib.contextmanager
def stage():
    """Yield a `Stage` in a folder of its own that does not outlive the block."""
    with tempfile.TemporaryDirectory() as root:
        built = Stage(Path(root))
        try:
            yield built
        finally:
            built.directory.close()


@contextlib.contextmanager
def full_pipe(data: bytes, *, keep_writer=False):
    """Yield a non-blocking read end with *data* in it, and the write end or None."""
    reader, writer = os.pipe()
    ends = [reader]
    os.set_blocking(reader, False)
    os.write(writer, data)
    if keep_writer:
        ends.append(writer)
    else:
        os.close(writer)
    try:
        yield reader, writer if keep_writer else None
    finally:
        for fd in ends:
            with contextlib.suppress(OSError):
                os.close(fd)


def pour(store: StreamStore, data: bytes, *, limit: int = 1 << 20) -> None:
    """Send *data* through a pipe into *store*."""
    for start in range(0, len(data), 32768):
        piece = data[start : start + 32768]
        with full_pipe(piece, keep_writer=True) as (reader, _):
            moved = 0
            while moved < len(piece):
                moved += store.splice_from(reader, limit)


def open_descriptors_to(path: Path) -> list[int]:
    """Return this process's descriptors that lead to *path*."""
    found: list[int] = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if link.readlink() == path:
                found.append(int(link.name))
    return found
