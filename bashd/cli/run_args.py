"""The words after ``bashd run``: one table of options, parsed without argparse.

Building argparse's parsers takes longer than everything else this client does, so
``run`` reads its own options; `bashd.cli.run_cmd` builds its help and completion from
the same table.
"""

from __future__ import annotations

import math

from bashd.core.errors import InvalidParamsError

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Final

MODES: Final = ("read-only", "workspace-write", "danger-full-access")
"""The words of `bashd.core.model.Mode`, whose import would cost more than the run."""


class Option:
    """One option: its name, its value's name (None for a switch), what it does."""

    def __init__(
        self, flag: str, metavar: str | None, help_text: str, *, repeats: bool = False
    ) -> None:
        self.flag = flag
        self.metavar = metavar
        self.help_text = help_text
        self.repeats = repeats


OPTIONS: Final = (
    Option("--mode", "MODE", f"how far the command may reach: {', '.join(MODES)}"),
    Option("--policy", "NAME", "policy to run under; brings its own mode"),
    Option("--cwd", "DIR", "workspace: its root and where the command starts"),
    Option("--session", "ID", "run in this session instead of the default one"),
    Option("--timeout", "SECONDS", "end it after this time; fractions allowed"),
    Option(
        "--env",
        "K=V",
        "set a variable, never scrubbed; K alone passes yours on; repeats",
        repeats=True,
    ),
    Option("--stdin", None, "forward standard input; otherwise it is /dev/null"),
    Option(
        "--tty",
        None,
        "give it a terminal of its own and pass yours through (also: -t)",
    ),
    Option("--background", None, "start it, print its task id and return"),
    Option("--json", None, "print one JSON object with all that is known, at the end"),
    Option("--socket", "PATH", "talk to the daemon on this socket and no other"),
    Option(
        "--host", "URL", "talk to another machine's daemon: ssh://[user@]host[:port]"
    ),
    Option("--no-autostart", None, "fail when no daemon is running"),
)
_BY_FLAG: Final = {option.flag: option for option in OPTIONS}
_SHORT: Final = {"-t": "--tty"}


class HelpWanted(Exception):  # noqa: N818 - a question, no error
    """Somebody asked for ``--help``."""


class RunArgs:
    """What ``bashd run`` was told.

    Attributes:
        command: One word as it was, several quoted and joined.
        mode: One of `MODES`, or None.
        timeout_ms: Milliseconds, or None.
        env: Explicit variables.
    """

    def __init__(
        self,
        words: Sequence[str],
        switches: frozenset[str],
        values: Mapping[str, str],
        env: dict[str, str],
    ) -> None:
        self.command = _join(words)
        self.mode = _mode(values.get("--mode"))
        self.policy = values.get("--policy")
        self.cwd = values.get("--cwd")
        self.session = values.get("--session")
        self.timeout_ms = _milliseconds(values.get("--timeout"))
        self.env = env
        self.tty = "--tty" in switches
        self.stdin = "--stdin" in switches
        self.background = "--background" in switches
        self.json = "--json" in switches
        self.socket = values.get("--socket")
        self.host = values.get("--host")
        self.autostart = "--no-autostart" not in switches
        if self.session is not None and self.cwd is not None:
            raise InvalidParamsError(
                "--session and --cwd exclude each other: a session has its own folder"
            )
        if self.tty and (self.stdin or self.background or self.json):
            raise InvalidParamsError(
                "-t is for people at a terminal; leave out --stdin, --background and"
                " --json"
            )


def parse_run(argv: Sequence[str], environ: Mapping[str, str]) -> RunArgs:
    """Parse the words after ``run``; the first that is no option begins the command.

    Raises:
        HelpWanted: ``-h`` or ``--help`` is among the options.
        InvalidParamsError: A word makes no sense; says which.
    """
    switches: set[str] = set()
    values: dict[str, str] = {}
    env: dict[str, str] = {}
    words = iter(argv)
    command: list[str] = []
    for word in words:
        if word == "--":
            command = [*words]
        elif not word.startswith("-") or word == "-":
            command = [word, *words]
        elif word in {"-h", "--help"}:
            raise HelpWanted
        else:
            option, value = _option(word, words)
            if value is None:
                switches.add(option.flag)
            elif option.repeats:
                name, _, text = _variable(value, environ).partition("=")
                env[name] = text
            else:
                values[option.flag] = value
    if not command:
        raise InvalidParamsError("no command was given; put it after --")
    return RunArgs(command, frozenset(switches), values, env)


def _option(word: str, rest: object) -> tuple[Option, str | None]:
    flag, equals, value = word.partition("=")
    option = _BY_FLAG.get(_SHORT.get(flag, flag))
    if option is None:
        raise InvalidParamsError(
            f"unknown option {flag}; put -- before a command that starts with a dash"
        )
    if option.metavar is None:
        if equals:
            raise InvalidParamsError(f"{flag} takes no value")
        return option, None
    if not equals:
        following = next(rest, None)  # type: ignore[call-overload]
        if following is None or following == "--":
            raise InvalidParamsError(f"{flag} needs a value: {flag} {option.metavar}")
        value = following
    return option, value


def _variable(text: str, environ: Mapping[str, str]) -> str:
    name, equals, _ = text.partition("=")
    if not name:
        raise InvalidParamsError(f"--env {text}: the name is missing; write K=V")
    if equals:
        return text
    if name not in environ:
        raise InvalidParamsError(f"--env {name}: your environment has no such variable")
    return f"{name}={environ[name]}"


def _join(words: Sequence[str]) -> str:
    if len(words) == 1:
        return words[0]
    import shlex  # noqa: PLC0415 - only for several words

    return shlex.join(words)


def _mode(word: str | None) -> str | None:
    if word is None or word in MODES:
        return word
    raise InvalidParamsError(f"--mode {word}: modes are {', '.join(MODES)}")


def _milliseconds(text: str | None) -> int | float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidParamsError(
            f"--timeout {text}: must be a positive finite number of seconds"
        )
    return milliseconds(seconds)


def milliseconds(seconds: float) -> int | float:
    """Return *seconds* in milliseconds, integral where they are."""
    value = round(seconds * 1000, 6)
    return round(value) if value.is_integer() else value
