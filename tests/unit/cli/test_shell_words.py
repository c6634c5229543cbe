"""Which of the words is the command and which the script, as bash itself sees it."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bashd.cli import ci_place
from bashd.cli.shell import command, without_jobserver
from bashd.cli.shell_words import ShellWords


@pytest.mark.parametrize(
    ("line", "expected_command", "script"),
    [
        ("-c CMD a b", "CMD", None),
        ("-ec CMD", "CMD", None),
        ("-c -e CMD", "CMD", None),
        ("-euxo pipefail -c CMD x", "CMD", None),
        ("-o pipefail -O extglob -c CMD", "CMD", None),
        ("--noprofile --norc -eo pipefail FILE a", None, "FILE"),
        ("--rcfile RC FILE", None, "FILE"),
        ("-xe FILE", None, "FILE"),
        ("+e FILE", None, "FILE"),
        ("+c FILE", None, "FILE"),
        ("-- -FILE", None, "-FILE"),
        ("-c -- CMD", "CMD", None),
        ("-s a b", None, None),
        ("-", None, None),
        ("-e", None, None),
        ("-c", None, None),
        ("-o", None, None),
        ("", None, None),
    ],
)
def test_command_and_script(
    line: str, expected_command: str | None, script: str | None
) -> None:
    words = ShellWords(line.split())
    assert (words.command, words.script) == (expected_command, script)
    assert words.words == line.split()


def test_only_a_command_alone_is_plain() -> None:
    assert ShellWords(["-c", "CMD"]).is_plain
    for line in (
        "-c CMD zero",
        "-ec CMD",
        "-c -e CMD",
        "-c -- CMD",
        "-c",
        "FILE",
        "-c -x",
    ):
        assert not ShellWords(line.split()).is_plain, line


OPTIONS = st.lists(
    st.sampled_from(
        [
            ("-e",),
            ("-u",),
            ("+x",),
            ("-o", "pipefail"),
            ("-O", "extglob"),
            ("--norc",),
            ("-eo", "pipefail"),
            ("--noprofile",),
            ("-euo", "pipefail"),
        ]
    ),
    max_size=4,
)


@given(OPTIONS, st.booleans())
@settings(max_examples=25, deadline=None)
def test_bash_finds_the_same_command(
    options: list[tuple[str, ...]], ends: bool
) -> None:
    # Long options have to come first, in bash.
    options.sort(key=lambda words: not words[0].startswith("--"))
    flat = [word for words in options for word in words]
    argv = [*flat, "-c", *(["--"] if ends else []), 'echo "$0"', "zero"]
    done = subprocess.run(["bash", *argv], capture_output=True, text=True, check=False)
    assert done.stdout == "zero\n"
    assert ShellWords(argv).command == 'echo "$0"'


@given(
    st.lists(st.text(st.characters(blacklist_characters="\0"), max_size=8), max_size=4)
)
@settings(max_examples=25, deadline=None)
def test_arguments_reach_bash_as_they_were(arguments: list[str]) -> None:
    words = ShellWords(["-c", 'printf "<%s>" "$@"', "zero", *arguments])
    line = command(words, root=None, home="", one_stream=False)
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False)
    expected = "".join(f"<{argument}>" for argument in arguments) or "<>"
    assert done.stdout.decode() == expected


def test_a_plain_command_needs_no_second_bash() -> None:
    assert (
        command(ShellWords(["-c", "make"]), root=None, home="", one_stream=False)
        == "make"
    )


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        (" -j2 --jobserver-auth=3,4", " -j2"),
        ("ks -j --jobserver-auth=fifo:/tmp/GMfifo1 -- X=1", "ks -j -- X=1"),
        ("-j4 --jobserver-fds=3,4", "-j4"),
        ("k", "k"),
    ],
)
def test_a_jobserver_outside_is_not_announced(flags: str, left: str) -> None:
    assert without_jobserver(flags) == left


def test_a_job_is_known_by_its_runner() -> None:
    assert ci_place.job({}) is None
    assert ci_place.job({"CI_JOB_ID": "7"}) == "CI_JOB_ID:7"
    one = {"GITHUB_RUN_ID": "1", "GITHUB_JOB": "a"}
    assert ci_place.job(one) != ci_place.job(one | {"GITHUB_JOB": "b"})
    assert ci_place.job(one | {"BASHD_JOB": "mine"}) == "mine"
