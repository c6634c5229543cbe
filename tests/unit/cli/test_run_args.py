"""The words after ``bashd run``."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bashd.cli.run_args import MODES, OPTIONS, HelpWanted, parse_run
from bashd.core.errors import InvalidParamsError
from bashd.core.model import Mode


def test_one_word_is_handed_on_as_it_is() -> None:
    assert parse_run(["echo $HOME | cat"], {}).command == "echo $HOME | cat"


@settings(deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_characters="\0")), min_size=2, max_size=4)
)
def test_several_words_are_quoted_so_that_bash_sees_the_same_words(
    words: list[str],
) -> None:
    command = parse_run(["--", *words], {}).command
    assert shlex.split(command) == words


def test_bash_takes_quoted_words_apart_as_they_were() -> None:
    words = ["printf", r"%s\n", "a b", "$x", "'", '"', "*", "é\n"]
    command = parse_run(["--", *words], {}).command
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert done.stdout.decode() == "".join(f"{word}\n" for word in words[2:])


def test_the_command_begins_at_the_first_word_that_is_no_option() -> None:
    args = parse_run(["--json", "ls", "--mode", "-l"], {})
    assert args.json
    assert args.command == "ls --mode -l"
    assert args.mode is None


def test_after_two_dashes_everything_is_the_command() -> None:
    assert parse_run(["--", "--help"], {}).command == "--help"
    assert parse_run(["--", "--", "x"], {}).command == "-- x"


def test_all_options_together() -> None:
    args = parse_run(
        [
            *("--mode", "workspace-write", "--policy=ci", "--cwd", "/ws"),
            *("--timeout", "2.5", "--env", "A=b=c", "--env=E=", "--env", "HOME"),
            *("--stdin", "--background", "--json", "--socket", "/s", "--no-autostart"),
            *("--", "true"),
        ],
        {"HOME": "/h"},
    )
    assert args.mode == "workspace-write"
    assert args.policy == "ci"
    assert args.cwd == "/ws"
    assert args.timeout_ms == 2500
    assert args.env == {"A": "b=c", "E": "", "HOME": "/h"}
    assert args.stdin
    assert args.background
    assert args.json
    assert args.socket == "/s"
    assert not args.autostart


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [("1", "1000"), ("0.1", "100"), ("1.0005", "1000.5"), ("1e3", "1000000")],
)
def test_seconds_become_milliseconds_without_a_needless_fraction(
    seconds: str, expected: str
) -> None:
    assert repr(parse_run(["--timeout", seconds, "x"], {}).timeout_ms) == expected


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_asked_for_only_before_the_command(word: str) -> None:
    with pytest.raises(HelpWanted):
        parse_run(["--json", word], {})
    assert parse_run(["ls", word], {}).command == f"ls {word}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no command was given"),
        (["--"], "no command was given"),
        (["--json"], "no command was given"),
        (["--frob", "x"], "unknown option --frob"),
        (["-x"], "unknown option -x"),
        (["--js", "x"], "unknown option --js"),
        (["--json=1", "x"], "--json takes no value"),
        (["--mode"], "--mode needs a value: --mode MODE"),
        (["--cwd", "--", "x"], "--cwd needs a value"),
        (["--mode", "root", "x"], "--mode root: modes are read-only"),
        (["--timeout", "0", "x"], "--timeout 0: must be a positive finite number"),
        (["--timeout", "-1", "x"], "positive finite"),
        (["--timeout", "nan", "x"], "positive finite"),
        (["--timeout", "inf", "x"], "positive finite"),
        (["--timeout", "soon", "x"], "positive finite"),
        (["--env", "NOPE", "x"], "your environment has no such variable"),
        (["--env", "=x", "x"], "the name is missing"),
        (["--session", "s", "--cwd", "/", "x"], "exclude each other"),
    ],
)
def test_words_that_make_no_sense_are_named(words: list[str], says: str) -> None:
    with pytest.raises(InvalidParamsError) as caught:
        parse_run(words, {})
    assert says in caught.value.message


def test_the_modes_are_those_of_the_model() -> None:
    assert list(MODES) == [mode.value for mode in Mode]


def test_no_two_options_share_a_name() -> None:
    assert len({option.flag for option in OPTIONS}) == len(OPTIONS)
