"""The shell's start: argv and nothing else, whatever the command is made of."""

from __future__ import annotations

import pytest

from bashd.core.errors import InvalidParamsError
from tests.support.stations import (
    FULL_ACCESS,
    ROOT_BWRAP,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
)

SOME = (ROOT_BWRAP, SERVED_BWRAP, USER_LANDLOCK, SERVED_LANDLOCK)
ARGUMENT_BYTES = 128 * 1024
"""execve's limit for one argument, its NUL included."""


def padded(command: str, length: int) -> str:
    """Return *command* behind a comment, *length* bytes in all."""
    return "#" + "-" * (length - len(command) - 2) + "\n" + command


@on(*SOME)
def test_the_argv_is_exactly_this(station: Station):
    command = "tr '\\0' '\\n' < /proc/$$/cmdline; echo $0 $# $-"
    for mode in (WORKSPACE_WRITE, FULL_ACCESS):
        said = station.text(command, mode)
        assert said == f"bash\n-c\n{command}\nbash 0 hBc\n"
    assert station.text("shopt -q login_shell || echo no login") == "no login\n"


@on(*SOME)
def test_a_start_up_file_of_the_callers_acts_inside_only(station: Station):
    canary = station.folder / "outside" / "canary"
    start_up = station.make("workspace/start-up", f"X=set; echo x > {canary}\n")
    env = {"BASH_ENV": str(start_up), "ENV": str(start_up)}
    result = station.run("echo ${X-unset}", env=env)
    assert result.stdout.text == "set\n"
    assert not canary.exists()
    for name in (".bashrc", ".profile", ".bash_profile"):
        station.make(f"workspace/{name}", "echo read\n")
    home = {"HOME": str(station.workspace)}
    assert station.text("echo plain", env=home) == "plain\n"


@on(*SOME)
def test_i49_a_command_longer_than_an_argument_runs_the_same(station: Station):
    script = "cat <<'A'; cat <<B\n$x `y` \\\nA\n$((1 + 1))\nB\n" + (
        'echo $\'tab\\there\' "$0" $# "`echo nested`"; exit 7'
    )
    wanted = station.run(script)
    assert wanted.exit_code == 7
    for length in (ARGUMENT_BYTES - 1, ARGUMENT_BYTES, 200_000, 2_000_000):
        for mode in (WORKSPACE_WRITE, FULL_ACCESS):
            # Nor does it need anything of the caller's PATH.
            result = station.run(padded(script, length), mode)
            assert result.exit_code == 7, length
            assert result.stdout.text == wanted.stdout.text, length
            assert result.stderr.text == ""
    bare = station.run(padded("echo there", 200_000), env={"PATH": "/nowhere"})
    assert bare.stdout.text == "there\n"
    piped = station.run(padded("cat", 200_000), stdin=b"its own stdin\n")
    assert piped.stdout.text == "its own stdin\n"


@on(*SOME)
def test_i49_a_syntax_error_is_bashs_own(station: Station):
    for command in ("if; then", padded("if; then", 200_000)):
        result = station.run(command)
        assert result.exit_code == 2
        assert "syntax error near unexpected token" in result.stderr.text
        assert result.sandbox is not None
        assert not result.sandbox.denied


@on(*SOME)
def test_bytes_that_no_argument_can_hold_are_refused(station: Station):
    with pytest.raises(InvalidParamsError, match="NUL"):
        station.run("echo a\0b")
    odd = "printf '%s\\n' 'ä €\U0001f40d' \"$(printf '\\001\\177')\""
    assert station.text(odd) == "ä €\U0001f40d\n\x01\x7f\n"
