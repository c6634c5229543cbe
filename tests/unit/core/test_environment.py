"""What a command's environment is made of."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.environment import (
    Contribution,
    EnvironmentRules,
    Facts,
    choose_bashd_home,
    compose,
    contribute,
)
from bashd.core.errors import InvalidParamsError
from bashd.core.scrub import is_scrubbed, scrub

FACTS = Facts(home="/home/u", user="u", bashd_home="/home/u/.bashd")
SESSION = Facts(
    home="/home/u",
    user="u",
    bashd_home="/home/u/.bashd",
    tmpdir="/tmp",
    session_id="s1",
    session_log="/var/log/s1.jsonl",
)

names = st.text("ABKEYTOSCRPWDabkeytoscrpwd_1", min_size=1, max_size=12)
values = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8)
environments = st.dictionaries(names, values, max_size=8)


@pytest.mark.parametrize(
    "name",
    [
        "A_API_KEY",
        "A_TOKEN",
        "A_SECRET",
        "A_PASSWORD",
        "MONKEY",
        "KEYBOARD_LAYOUT",
        "TOKENIZERS_PARALLELISM",
        "PGPASSWORD",
        "my_token",
        "BASHD_SESSION_ID",
        "bashd_anything",
        "Bashd_Home",
        "BASHD_",
    ],
)
def test_credential_shaped_and_managed_names_are_scrubbed(name: str):
    assert is_scrubbed(name)
    assert scrub({name: "v"}) == ({}, (name,))


@pytest.mark.parametrize(
    "name",
    [
        "A_PLAIN",
        "PATH",
        "HOME",
        "LANG",
        "HTTP_PROXY",
        "SSH_AUTH_SOCK",
        "MY_PASSPHRASE",
        "DB_PASS",
        "AWS_CREDENTIALS",
        "GITHUB_PAT",
        "DATABASE_URL",
        "MY_BASHD_X",
        "BASH_ENV",
        "BASHDX",
    ],
)
def test_other_names_pass_the_scrub(name: str):
    assert scrub({name: "v"}) == ({name: "v"}, ())


def test_lookalike_letters_do_not_pass_the_scrub():
    kelvin_sign, long_s = "\u212a", "\u017f"
    assert is_scrubbed(f"A_{kelvin_sign}EY")
    assert is_scrubbed(f"A_{long_s}ECRET")


@given(environments)
def test_scrub_splits_the_environment_in_two(env: dict[str, str]):
    kept, removed = scrub(env)
    assert kept.keys() | set(removed) == env.keys()
    assert not kept.keys() & set(removed)
    assert not any(is_scrubbed(name) for name in kept)
    assert all(env[name] == value for name, value in kept.items())
    assert scrub(kept) == (kept, ())


def test_the_scrub_loads_without_the_rest_of_bashd():
    script = (
        "import sys; before = set(sys.modules); import bashd.core.scrub;"
        "print(sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    names = set(eval(loaded.stdout))
    assert names <= {"bashd", "bashd.core", "bashd.core.scrub", "__future__"}


def test_terminal_defaults_are_set_and_the_ambient_ones_lose():
    env = compose({"TERM": "xterm", "PAGER": "less"}, facts=FACTS).env
    assert env["NO_COLOR"] == "1"
    assert env["TERM"] == "dumb"
    assert env["PAGER"] == "cat"
    assert env["GIT_PAGER"] == "cat"
    assert env["GIT_TERMINAL_PROMPT"] == "0"
    assert env["GIT_EDITOR"] == "true"


def test_explicit_entries_win_over_defaults_and_scrub():
    made = compose(
        {"MY_KEY": "ambient"}, facts=FACTS, explicit={"TERM": "xterm", "MY_KEY": "v"}
    )
    assert made.env["TERM"] == "xterm"
    assert made.env["MY_KEY"] == "v"
    assert made.removed == ()


def test_a_tombstone_removes_the_variable():
    ambient = {"FOO": "x", "BAR": "y"}
    env = compose(ambient, facts=FACTS, explicit={"FOO": None, "TERM": None}).env
    assert "FOO" not in env
    assert "TERM" not in env
    assert env["BAR"] == "y"
    assert ambient == {"FOO": "x", "BAR": "y"}


def test_a_tombstone_for_what_is_not_there_is_fine():
    assert "X" not in compose({}, facts=FACTS, explicit={"X": None}).env


def test_receipt_names_what_both_scrubs_and_the_policy_took():
    made = compose(
        {"A_TOKEN": "1", "AWS_PROFILE": "2", "PATH": "/bin"},
        facts=FACTS,
        rules=EnvironmentRules(drop=("AWS_*",)),
        already_removed=("B_SECRET",),
    )
    assert made.removed == ("AWS_PROFILE", "A_TOKEN", "B_SECRET")
    assert made.env["PATH"] == "/bin"


def test_managed_facts_are_set():
    env = compose({}, facts=SESSION).env
    assert env["BASHD_SHELL"] == "1"
    assert env["BASHD_HOME"] == "/home/u/.bashd"
    assert env["BASHD_SESSION_ID"] == "s1"
    assert env["BASHD_SESSION_JSONL"] == "/var/log/s1.jsonl"


def test_without_a_session_there_is_no_session_id():
    env = compose({"BASHD_SESSION_ID": "outer"}, facts=FACTS).env
    assert "BASHD_SESSION_ID" not in env
    assert "BASHD_SESSION_JSONL" not in env


def test_managed_values_win_over_explicit_ones():
    env = compose(
        {},
        facts=SESSION,
        explicit={"BASHD_SESSION_ID": "fake", "BASHD_EXTRA": "fake"},
        managed={"BASHD_EXTRA": "real"},
    ).env
    assert env["BASHD_SESSION_ID"] == "s1"
    assert env["BASHD_EXTRA"] == "real"


def test_an_explicit_tombstone_does_not_remove_a_managed_value():
    env = compose({}, facts=SESSION, explicit={"BASHD_SHELL": None}).env
    assert env["BASHD_SHELL"] == "1"


def test_managed_values_may_restate_facts_and_name_the_callers_home():
    env = compose(
        {},
        facts=SESSION,
        managed={"BASHD_SESSION_ID": "s1", "BASHD_HOME": "/srv/bashd"},
    ).env
    assert env["BASHD_HOME"] == "/srv/bashd"


@pytest.mark.parametrize("name", ["BASHD_SHELL", "BASHD_SESSION_ID"])
def test_managed_values_may_not_contradict_facts(name: str):
    with pytest.raises(InvalidParamsError, match=name):
        compose({}, facts=SESSION, managed={name: "other"})


@pytest.mark.parametrize(
    "name", ["FOO", "BASHD_", "BASHD_1", "BASHD_a", "BASHD_A-B", "bashd_A", "BASHD_A\n"]
)
def test_managed_names_are_bashds_own(name: str):
    with pytest.raises(InvalidParamsError, match="managed variable"):
        compose({}, facts=SESSION, managed={name: "v"})


def test_tmpdir_is_the_sessions_and_explicit_wins():
    ambient = {"TMPDIR": "/host/tmp", "TMP": "/host/tmp"}
    env = compose(ambient, facts=SESSION, explicit={"TEMP": "/mine"}).env
    assert env["TMPDIR"] == "/tmp"
    assert env["TMP"] == "/tmp"
    assert env["TEMP"] == "/mine"


def test_without_a_folder_tmpdir_is_the_callers():
    assert compose({"TMPDIR": "/host"}, facts=FACTS).env["TMPDIR"] == "/host"
    assert "TMPDIR" not in compose({}, facts=FACTS).env


def test_identity_comes_from_the_caller_when_set():
    env = compose({"HOME": "/else", "USER": ""}, facts=FACTS).env
    assert env["HOME"] == "/else"
    assert env["USER"] == "u"
    assert env["LOGNAME"] == "u"


def test_keep_lets_only_named_variables_pass():
    rules = EnvironmentRules(keep=("PATH", "LC_*"), drop=("LC_ALL",))
    env = compose(
        {"PATH": "/bin", "LC_TIME": "C", "LC_ALL": "C", "FOO": "1"},
        facts=FACTS,
        rules=rules,
    ).env
    assert env["PATH"] == "/bin"
    assert env["LC_TIME"] == "C"
    assert "LC_ALL" not in env
    assert "FOO" not in env
    assert env["HOME"] == "/home/u"


def test_policy_settings_win_over_defaults_and_lose_to_explicit_entries():
    rules = EnvironmentRules(set=(("PAGER", "less"), ("A", "policy"), ("B", "policy")))
    env = compose({"A": "x"}, facts=FACTS, rules=rules, explicit={"B": "mine"}).env
    assert env["PAGER"] == "less"
    assert env["A"] == "policy"
    assert env["B"] == "mine"


def test_policy_defaults_yield_to_the_callers_values():
    rules = EnvironmentRules(default=(("A", "policy"), ("B", "policy")))
    env = compose({"A": "mine"}, facts=FACTS, rules=rules).env
    assert env["A"] == "mine"
    assert env["B"] == "policy"


def test_policy_values_may_start_with_a_folder():
    rules = EnvironmentRules(
        set=(
            ("A", "$TMPDIR/cache"),
            ("B", "~/x"),
            ("C", "$HOME"),
            ("D", "$HOMELESS/x"),
            ("E", "a:~/x"),
        )
    )
    env = compose({"HOME": "/h"}, facts=SESSION, rules=rules).env
    assert [env[name] for name in "ABCDE"] == [
        "/tmp/cache",
        "/h/x",
        "/h",
        "$HOMELESS/x",
        "a:~/x",
    ]


@pytest.mark.parametrize("name", ["", "A=B", "A\0"])
@pytest.mark.parametrize("layer", ["ambient", "explicit"])
def test_impossible_names_are_refused(name: str, layer: str):
    ambient = {name: "v"} if layer == "ambient" else {}
    explicit: dict[str, str | None] = {} if ambient else {name: "v"}
    with pytest.raises(InvalidParamsError, match="cannot name a variable"):
        compose(ambient, facts=FACTS, explicit=explicit)


def test_a_nul_in_a_value_is_refused_by_name():
    with pytest.raises(InvalidParamsError, match="the value of FOO holds a NUL"):
        compose({}, facts=FACTS, explicit={"FOO": "a\0b"})


@pytest.mark.parametrize("value", [1, True, ["x"]])
def test_a_value_that_is_no_string_is_refused(value: object):
    with pytest.raises(InvalidParamsError, match="FOO must be a string"):
        compose({}, facts=FACTS, explicit={"FOO": value})  # pyright: ignore[reportArgumentType]


@given(environments, environments)
def test_every_composed_variable_can_be_passed_to_a_process(
    ambient: dict[str, str], explicit: dict[str, str]
):
    made = compose(ambient, facts=SESSION, explicit=dict(explicit))
    for name, value in made.env.items():
        assert name
        assert "=" not in name
        assert "\0" not in name + value
        if name not in explicit and not name.startswith("BASHD_"):
            assert not is_scrubbed(name)
    assert not set(made.removed) & made.env.keys()


def test_contributions_join():
    joined = contribute(
        [
            Contribution("a", ("BASHD_A", "BASHD_UNUSED"), {"BASHD_A": "1"}),
            Contribution("b", ("BASHD_SESSION_JSONL",), {"BASHD_SESSION_JSONL": "/x"}),
        ]
    )
    assert joined == {"BASHD_A": "1", "BASHD_SESSION_JSONL": "/x"}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([Contribution("a", ("BASHD_SHELL",), {})], "reserved"),
        ([Contribution("a", ("BASHD_HOME",), {})], "reserved"),
        ([Contribution("a", ("BASHD_SESSION_ID",), {})], "reserved"),
        ([Contribution("a", ("FOO",), {})], "managed variable"),
        ([Contribution("a", ("BASHD_X", "BASHD_X"), {})], "both declare"),
        (
            [Contribution("a", ("BASHD_X",), {}), Contribution("b", ("BASHD_X",), {})],
            "both declare",
        ),
        ([Contribution("a", (), {}), Contribution("a", (), {})], 'named "a"'),
        ([Contribution("a", (), {"BASHD_X": "1"})], "without declaring"),
        (
            [Contribution("a", ("BASHD_X",), {"BASHD_X": 1})],  # pyright: ignore[reportArgumentType]
            "must be a string",
        ),
        ([Contribution("a", ("BASHD_X",), {"BASHD_X": "\0"})], "NUL"),
    ],
)
def test_bad_contributions_fail_loudly(parts: list[Contribution], message: str):
    with pytest.raises(InvalidParamsError, match=message):
        contribute(parts)


@pytest.mark.parametrize(
    ("configured", "ambient", "expected"),
    [
        ("/etc/x", "/a", "/etc/x"),
        (None, "/a/", "/a"),
        (None, "  ", "/home/u/.bashd"),
        (None, None, "/home/u/.bashd"),
        (None, "rel", "/cwd/rel"),
    ],
)
def test_bashd_home_is_absolute(
    configured: str | None, ambient: str | None, expected: str
):
    assert (
        choose_bashd_home(configured, ambient, home="/home/u", cwd="/cwd") == expected
    )
