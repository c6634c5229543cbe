"""``bashd-sh``: bash for programs that call a shell, confined.

Takes bash's own words, runs them in a cell under ``$BASHD_POLICY`` (`ci`), passes
stdin, output and signals through, and ends as the command ended: with its status, or by
its signal. Every recipe of a makefile comes this way, so it costs what ``bashd run``
costs and loads no more.

Inside a cell it goes back to the daemon as the confined caller that it is: same session,
same policy, whatever the environment says.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import stat
import sys

from bashd.cli import ci_place
from bashd.cli.foreground import Foreground
from bashd.cli.interrupts import Interrupts
from bashd.cli.outcome import denial_lines, exit_status, failure_status
from bashd.cli.shell_words import ShellWords
from bashd.cli.terminal import open_missing_streams, visible
from bashd.client.ambient import ambient_of
from bashd.client.folder import absolute
from bashd.client.link import Link
from bashd.core.errors import BashdError, HostError, InvalidParamsError
from bashd.core.paths import is_below

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Final

DEFAULT_POLICY: Final = "ci"

_PASSED_AS_THEY_ARE: Final = (
    "NO_COLOR", "TERM", "PAGER", "GIT_PAGER", "GIT_TERMINAL_PROMPT", "GIT_EDITOR",
)  # fmt: skip
"""The daemon has defaults of its own for these; a shell has none."""

_HIDDEN: Final = ("/tmp/", "/var/tmp/", "/run/", "/dev/shm/")  # noqa: S108 - host's
"""A cell has its own of these."""
_DESCRIPTORS: Final = ("/dev/fd/", "/proc/self/fd/")
"""``<(…)`` of the caller's bash; descriptors stay outside."""
_BASH: Final = 'exec -a bash "$BASH"'
"""The very same program, whatever PATH says."""
_MOST_TEXT: Final = 4 * 1024 * 1024
"""Bytes of a script that are sent along; half of what a request may have."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def main(argv: Sequence[str] | None = None) -> int:
    """Be the shell; returns the exit status, unless a signal ended the command."""
    words = ShellWords(sys.argv[1:] if argv is None else argv)
    open_missing_streams()
    interrupts = Interrupts(_SIGNALS)
    try:
        result = _run(words, interrupts)
    except BashdError as error:
        if interrupts.first is not None:
            return _die_by(interrupts.first)
        return _fail(error)
    except OSError as error:
        return _fail(HostError(f"cannot write the output: {error.strerror}"))
    if result["aborted"]:
        return _die_by(interrupts.first or signal.SIGPIPE)
    if result["signal"] is not None:
        return _die_by(exit_status(result) - 128)
    return exit_status(result)


def _run(words: ShellWords, interrupts: Interrupts) -> dict[str, Any]:
    one_stream = _same_file(1, 2)
    params = _params(os.environ)
    params["command"] = command(
        words,
        root=params.get("cwd"),
        home=os.environ.get("HOME", ""),
        one_stream=one_stream,
    )
    forward_stdin = not _is_null(0)
    params["stdin_stream"] = forward_stdin
    params["stream"] = True
    inside = "session_id" in params
    # In a cell there is nothing to start a daemon for: it would be as confined.
    link = Link.reach(None, host="", autostart=not inside, client="bashd-sh")
    # The scrub takes this name; a shell called from inside has to find the daemon.
    params["env"]["BASHD_SOCKET"] = link.connection.getpeername()
    request_id = link.send("exec.run", params)
    run = Foreground(link, request_id, interrupts, forward_stdin=forward_stdin)
    result = run.wait()
    lines = denial_lines(result["sandbox"])
    if result["timed_out"]:
        lines.append(f"[timed out after {result['timeout_ms'] / 1000:g} s]")
    run.conclude(result, [] if run.closed_stdout else lines)
    return result


def _params(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what a call says besides its command."""
    ambient, removed = ambient_of(environ)
    if "MAKEFLAGS" in ambient:
        ambient["MAKEFLAGS"] = without_jobserver(ambient["MAKEFLAGS"])
    params: dict[str, Any] = {
        "workdir": absolute(),
        "ambient": ambient,
        "env_removed": removed,
        "env": _explicit(environ),
    }
    session = environ.get("BASHD_SESSION_ID")
    if session and environ.get("BASHD_SHELL"):
        # Called from within a cell. Outside of one, the session's own policy holds.
        return params | {"session_id": session}
    policy = environ.get("BASHD_POLICY") or DEFAULT_POLICY
    place = {"cwd": ci_place.workspace(environ), "policy": policy}
    job = ci_place.job(environ)
    return params | place | ({"job": job} if job else {})


def _explicit(environ: Mapping[str, str]) -> dict[str, str | None]:
    explicit: dict[str, str | None] = {
        name: environ.get(name) for name in _PASSED_AS_THEY_ARE
    }
    for name in environ.get("BASHD_PASS", "").replace(",", " ").split():
        if name not in environ:
            raise InvalidParamsError(f"BASHD_PASS names {name}, which is not set")
        explicit[name] = environ[name]
    return explicit


def command(words: ShellWords, *, root: str | None, home: str, one_stream: bool) -> str:
    """Return what the cell's bash is to run.

    Args:
        words: What we were called with.
        root: The workspace, which is there in the cell; None when we are in it.
        home: The caller's home folder, which a job has its own of.
        one_stream: stdout and stderr are one file: their order is to be kept.
    """
    if words.is_plain and words.command and not one_stream:
        return words.command
    merged = " 2>&1" if one_stream else ""
    line = f"{_BASH} {shlex.join(words.words)}{merged}"
    if words.script is None or not _may_be_hidden(words.script, root, home):
        return line
    text = _read_script(words.script)
    if text is None:
        return line
    whole = text.rstrip("\n")
    rest = shlex.quote(text[len(whole) :])
    path = shlex.quote(absolute(words.script))
    folder = shlex.quote(os.path.dirname(absolute(words.script)))  # noqa: PTH120
    # Where it is not there, or another step's is, it is put there; where it cannot
    # be, its text is run by its name.
    options, operands = words.around_text
    by_name = f'{_BASH} {shlex.join(options)} "$__text"{rest} {shlex.join(operands)}'
    return (
        f"__text={shlex.quote(whole)}\n"
        f'there() {{ [[ -f {path} && $(<{path}) == "$__text" ]]; }} 2>/dev/null\n'
        f'put() {{ mkdir -p {folder} && printf %s%s "$__text" {rest} > {path}; }}'
        " 2>/dev/null\n"
        f"there || put; if there; then {line}; else {by_name}{merged}; fi"
    )


def _may_be_hidden(script: str, root: str | None, home: str) -> bool:
    """Whether a cell may lack this file: it has some folders of its own."""
    if root is None:
        return False
    if absolute(script).startswith(_DESCRIPTORS):
        return True
    path = os.path.realpath(script)
    if is_below(path, os.path.realpath(root)):
        return False
    in_home = home.startswith("/") and is_below(path, os.path.realpath(home))
    return path.startswith(_HIDDEN) or in_home


def _read_script(path: str) -> str | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - no pathlib here
            data = file.read(_MOST_TEXT + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError):
        # bash says best what is wrong with it.
        return None
    return None if len(data) > _MOST_TEXT or "\0" in text else text


def without_jobserver(flags: str) -> str:
    """Return MAKEFLAGS without the descriptors of a jobserver, which stay outside.

    A make in the cell that is told to use them warns and builds one job at a time; told
    only how many, it makes a jobserver of its own.
    """
    return " ".join(
        word
        for word in flags.split(" ")
        if not word.startswith(("--jobserver-auth=", "--jobserver-fds="))
    )


def _same_file(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    if stat.S_ISCHR(first.st_mode) and not os.isatty(one):
        # /dev/null and its like keep no order.
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _is_null(fd: int) -> bool:
    info = os.fstat(fd)
    # Source: linux/Documentation/admin-guide/devices.txt, 1 char, 3 = /dev/null.
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == os.makedev(1, 3)


def _die_by(number: int) -> int:
    """End as the command ended, so that our caller sees a signal where one was."""
    import resource  # noqa: PLC0415 - rarely needed

    # The command's core would tell something, ours would not.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    # A signal that this process survives by default.
    return 128 + number


def _fail(error: BashdError) -> int:
    message = f"bashd-sh: {visible(error.message)}\n".encode(errors="backslashreplace")
    with contextlib.suppress(OSError):
        os.write(2, message)
    return failure_status(error)
