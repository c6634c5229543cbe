"""The contract between the daemon and the processes of a cell. Pure.

Messages travel on SOCK_SEQPACKET sockets, one message a packet. Each is one tag byte
followed by fields joined with NUL: no field may hold a NUL, which commands, paths and
environments cannot anyway. Descriptors ride along in a fixed order that each message
class states. Whatever arrives from a cell is untrusted: every decoder checks the
number of fields and of descriptors and raises `WireError`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PACKET_BYTES: Final = 64 * 1024
"""Largest packet sent. A SEQPACKET message tops out near 200 kB (net.core.wmem)."""
INLINE_BYTES: Final = 48 * 1024
"""A request longer than this travels in a sealed memfd instead."""
MAX_PAYLOAD_BYTES: Final = 32 * 1024 * 1024
MAX_ARG_BYTES: Final = 128 * 1024 - 1
"""execve's limit for one argument (MAX_ARG_STRLEN, 32 pages), less its NUL."""

# keeper to daemon
HELLO: Final = b"H"
SPARE: Final = b"S"
EXITED: Final = b"X"
FAILED: Final = b"F"
ADOPT: Final = b"O"
TASK: Final = b"T"
TASKS_END: Final = b"t"
HELD: Final = b"h"
"""The pipe of a HOLD, of which it repeats the fields, is held."""
# daemon to keeper
CONFIG: Final = b"C"
FORK: Final = b"N"
SIGNAL: Final = b"G"
KILL: Final = b"K"
ACK: Final = b"A"
DROP: Final = b"D"
HOLD: Final = b"P"
"""With one descriptor, serial and stream (1 or 2): a task's second pipe."""
END: Final = b"E"
# daemon to spare; ``M``: the fields are in the memfd that comes first
REQUEST: Final = b"R"
REQUEST_MEMFD: Final = b"M"
# keeper.py to the program it becomes, in a memfd
CELL: Final = b"Z"
# spare to daemon
TERMINAL: Final = b"p"
"""With one descriptor, before RUNNING: the master of the command's terminal."""
RUNNING: Final = b"x"
STEP_FAILED: Final = b"f"


_MAX_DIGITS: Final = 20
"""Of a 64-bit number."""


class WireError(ValueError):
    """A message that does not follow this file."""


def pack(tag: bytes, *fields: bytes) -> bytes:
    """Join *fields* behind *tag*; a NUL inside one is a `WireError`."""
    message = tag + b"\0".join(fields)
    if message.count(b"\0") != max(len(fields) - 1, 0):
        raise WireError("a field holds a NUL")
    return message


def unpack(message: bytes, count: int | None = None) -> list[bytes]:
    """Split the fields behind the tag; with *count*, exactly that many."""
    fields = message[1:].split(b"\0") if len(message) > 1 else []
    if count is not None and len(fields) != count:
        raise WireError(f"{message[:1]!r} has {len(fields)} fields, not {count}")
    return fields


def number(field: bytes) -> int:
    """Parse a decimal integer of at most 20 digits."""
    text = field[1:] if field[:1] == b"-" else field
    if not text.isdigit() or len(text) > _MAX_DIGITS:
        raise WireError(f"not a number: {field[:32]!r}")
    return int(field)


def _expect_fds(what: str, fds: list[int], count: int) -> None:
    if len(fds) != count:
        raise WireError(f"{what} came with {len(fds)} descriptors, not {count}")


class Hello(NamedTuple):
    """Proof of life: what the cell's processes are really behind.

    No descriptors.
    """

    cell_pid: int
    uid: int
    gid: int
    landlock_abi: int
    """0: no Landlock layer is in force."""
    landlock_scoped: bool
    """Signals and abstract sockets are scoped (ABI 6)."""
    seccomp: bool
    no_new_privs: bool
    capabilities: int
    """Union of the five capability sets; 0 in every confining mode."""

    @classmethod
    def decode(cls, message: bytes, fds: list[int]) -> Hello:
        """Parse a packet from a cell."""
        _expect_fds("hello", fds, 0)
        values = [number(field) for field in unpack(message, 8)]
        pid, uid, gid, abi, scoped, seccomp, no_new_privs, capabilities = values
        return cls(
            pid,
            uid,
            gid,
            abi,
            bool(scoped),
            bool(seccomp),
            bool(no_new_privs),
            capabilities,
        )


class SpareReady(NamedTuple):
    """A complete spare. Descriptors: request socket, stdout, stderr, pidfd."""

    serial: int
    """As the daemon's FORK named it."""
    cell_pid: int
    grouped: bool
    """It was born in the cgroup that came with the FORK."""

    FD_COUNT = 4

    @classmethod
    def decode(cls, message: bytes, fds: list[int]) -> SpareReady:
        """Parse a packet from a cell."""
        _expect_fds("spare", fds, 4)
        serial, pid, grouped = (number(field) for field in unpack(message, 3))
        if serial <= 0 or pid <= 0:
            raise WireError("spare with a number that is not positive")
        return cls(serial, pid, bool(grouped))


class Exited(NamedTuple):
    """A spare or its command has ended; its pid stays taken until ACK."""

    serial: int
    status: int
    """As wait(2) encodes it."""
    cpu_us: int
    max_rss_kib: int
    ran: bool
    """False: this is a task's process that never became its command. Asked for tasks
    alone, which may be adopted; of others their request sockets tell."""

    @classmethod
    def decode(cls, message: bytes, fds: list[int]) -> Exited:
        """Parse a packet from a cell."""
        _expect_fds("exit", fds, 0)
        *values, ran = (number(field) for field in unpack(message, 5))
        return cls(*values, ran=bool(ran))


class Failed(NamedTuple):
    """The cell could not be set up: the step that failed and why."""

    step: str
    reason: str

    def encode(self, tag: bytes = FAILED) -> bytes:
        """Return the packet; NULs and excess length are cut, this is a last word."""
        reason = self.reason.replace("\0", " ")[:2000]
        return pack(tag, self.step.encode(), reason.encode(errors="replace"))

    @classmethod
    def decode(cls, message: bytes, fds: list[int]) -> Failed:
        """Parse a packet from a cell."""
        _expect_fds("failure", fds, 0)
        step, reason = unpack(message, 2)
        return cls(step.decode(errors="replace"), reason.decode(errors="replace"))


class Adopt(NamedTuple):
    """First packet of a keeper that dials home after its daemon's death.

    No descriptors. The answer is one packet: ``y`` to go on, anything else to end.
    """

    cell_id: str
    secret: str

    YES = b"y"

    @classmethod
    def decode(cls, message: bytes, fds: list[int]) -> Adopt:
        """Parse a packet from whoever connected."""
        _expect_fds("adoption", fds, 0)
        if message[:1] != ADOPT:
            raise WireError("not an adoption")
        cell_id, secret = unpack(message, 2)
        return cls(cell_id.decode("ascii"), secret.decode("ascii"))


class TaskHeld(NamedTuple):
    """A task the keeper still holds. Descriptors: stdout, stderr, pidfd, second pipes.

    Its pipes' bytes since the daemon's death are all still in them.
    """

    serial: int
    cell_pid: int
    second_pipes: tuple[int, ...]
    """Streams, 1 or 2, whose older bytes are in a second pipe. Their descriptors come
    in this order."""
    holds_pipes: bool
    """The keeper knows HOLD. One that was started by an earlier bashd does not, and says
    nothing of second pipes; its tasks are taken over all the same."""

    MAX_FDS = 5

    @classmethod
    def decode(cls, message: bytes, fds: list[int]) -> TaskHeld:
        """Parse a packet from a cell."""
        fields = unpack(message)
        if len(fields) not in (2, 4):
            raise WireError(f"held task with {len(fields)} fields")
        serial, pid, *pipes_held = map(number, fields)
        if serial <= 0 or pid <= 0:
            raise WireError("held task with a number that is not positive")
        pipes = tuple(i for i, held in enumerate(pipes_held, start=1) if held)
        _expect_fds("held task", fds, 3 + len(pipes))
        return cls(serial, pid, pipes, bool(pipes_held))


class PipeHeld(NamedTuple):
    """A keeper holds the second pipe of a task's stream.

    No descriptors.
    """

    serial: int
    stream: int

    @classmethod
    def decode(cls, message: bytes, fds: list[int]) -> PipeHeld:
        """Parse a packet from a cell."""
        _expect_fds("held pipe", fds, 0)
        return cls(*(number(field) for field in unpack(message, 2)))


class Request(NamedTuple):
    """One command for a spare. Descriptors: [memfd], [stdin], [script].

    *workdir* is opened inside the cell, with the peer's rights and without following
    links, and must be the inode the daemon resolved.
    """

    command: bytes
    """Empty when *has_script*: the command is too long for an argument."""
    workdir: bytes
    workdir_dev: int
    workdir_ino: int
    has_stdin: bool
    has_script: bool
    limits: tuple[tuple[int, int, int], ...]
    """(RLIMIT number, soft, hard)."""
    environment: tuple[bytes, ...]
    """``NAME=value`` entries."""
    terminal: tuple[int, int] | None = None
    """Rows and columns of a terminal for it; None: pipes."""

    def encode(self) -> bytes:
        """Return the packet, or the payload of the memfd when it is too long."""
        limits = b",".join(b"%d:%d:%d" % limit for limit in self.limits)
        return pack(
            REQUEST,
            self.command,
            self.workdir,
            b"%d" % self.workdir_dev,
            b"%d" % self.workdir_ino,
            b"%d" % self.has_stdin,
            b"%d" % self.has_script,
            limits,
            b"" if self.terminal is None else b"%d:%d" % self.terminal,
            *self.environment,
        )


def cell_configuration(
    *,
    has_ruleset: bool,
    has_layer: bool,
    log_flags: int,
    landlock_abi: int,
    landlock_scoped: bool,
    may_signal_all: bool,
    bash: bytes,
    home: tuple[bytes, int, bytes, bytes, int] | None,
    mounts: list[tuple[bytes, int, int, bool]],
) -> bytes:
    """Return what the keeper reads from a memfd when it starts.

    Args:
        has_ruleset: Whether a ruleset for its spares comes along.
        has_layer: Whether one for the zygote does.
        log_flags: Of these layers, see landlock_restrict_self(2).
        landlock_abi: For the hello.
        landlock_scoped: Likewise.
        may_signal_all: Whether kill(-1) reaches nothing but the cell.
        bash: Path of the shell.
        home: Name of the daemon's socket, its uid, the cell, its secret, and for how
            many milliseconds to look for it; None: the cell ends with its daemon.
        mounts: (path, device, inode, read-only): what these must still be.
    """
    fields = [
        *(b"%d" % value for value in (has_ruleset, has_layer, log_flags)),
        *(b"%d" % value for value in (landlock_abi, landlock_scoped, may_signal_all)),
        bash,
        b"%d" % (home is not None),
    ]
    if home is not None:
        name, uid, cell_id, secret, timeout_ms = home
        fields += [name, b"%d" % uid, cell_id, secret, b"%d" % timeout_ms]
    for path, device, inode, read_only in mounts:
        fields += [path, b"%d" % device, b"%d" % inode, b"%d" % read_only]
    return pack(CELL, *fields)
