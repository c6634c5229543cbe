"""One policy file: what it may say, what it becomes, how it is shown."""

from __future__ import annotations

import contextlib
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.environment import EnvironmentRules
from bashd.core.errors import ConfigError, InvalidParamsError
from bashd.core.kinds import BadValueError
from bashd.core.model import Mode
from bashd.core.policy import (
    EFFECT,
    Limits,
    Policy,
    SocketRules,
    check_name,
    expand,
    expand_path,
    from_values,
    parse_policy,
    values_of,
)
from bashd.core.policy_schema import KEYS, schema
from bashd.core.policy_text import to_json, to_toml
from bashd.core.policy_values import CommandRule

FILE = "/etc/bashd/policies/x.toml"


def stated(text: str) -> dict[str, object]:
    return dict(parse_policy(text, FILE).values)


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, FILE)
    assert caught.value.message.startswith(FILE + ": ")
    return caught.value.message


FULL = """
description = "everything at once"
mode = "workspace-write"
writable = ["~/.cargo/registry/", "$HOME/x", "/srv//data"]
masked = ["~/.ssh", "/etc/shadow*", "$XDG_RUNTIME_DIR/keyring"]
unmasked = ["~/.aws"]
protected = [".git/hooks", ".envrc/"]
unprotected = [".idea"]
home = "private"
visible = ["~/.m2"]
scratch = false
network = "none"
nested = true
namespaces = true
devices = ["/dev/dri", "/dev/kvm"]
agents = ["ssh", "ssh"]
[sockets]
unix = true
grant = ["/run/app.sock"]
[environment]
keep = ["PATH", "LC_*"]
drop = ["AWS_*"]
default = { A = "$TMPDIR/a" }
set = { B = "1", A_TOKEN = "t" }
[limits]
pids = 10
memory_bytes = "unlimited"
cpu_weight = 50
cpu_s = 60
job_s = 7200
wall_s = 3600
file_size_bytes = 0
shm_bytes = 4096
open_files = 1024
core_bytes = 0
[[command]]
pattern = "git push"
action = "ask"
reason = "leaves this machine"
[[command]]
pattern = "^git "
action = "allow"
"""


def test_every_key_is_read():
    values = stated(FULL)
    assert values.keys() == KEYS.keys()
    assert values["mode"] is Mode.WORKSPACE_WRITE
    assert values["writable"] == ("~/.cargo/registry", "~/x", "/srv/data")
    assert values["masked"] == ("~/.ssh", "/etc/shadow*", "$XDG_RUNTIME_DIR/keyring")
    assert values["protected"] == (".git/hooks", ".envrc")
    assert values["agents"] == ("ssh",)
    assert values["environment.set"] == (("A_TOKEN", "t"), ("B", "1"))
    assert values["limits.memory_bytes"] is None
    assert values["command"] == (
        (
            CommandRule("git push", "ask", "leaves this machine"),
            CommandRule("^git ", "allow"),
        ),
    )


def test_a_file_states_only_what_it_says():
    assert stated("") == {}
    assert stated('network = "none"') == {"network": "none"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('netwrok = "none"', ('unknown key "netwrok"', '"network"')),
        ("pids = 3", ('unknown key "pids"', '"limits.pids"')),
        ("zzz = 3", ('unknown key "zzz"', "known here", "masked")),
        ("[limits]\nmemory = 3", ('"limits.memory"', '"memory_bytes"')),
        ("limits = 3", ("limits must be a table", "[limits]")),
        ('mode = "workspace-writ"', ("mode must be one of", '"workspace-write"?')),
        ("mode = true", ("mode must be one of",)),
        ('scratch = "yes"', ("scratch must be true or false", '"yes"')),
        ('masked = "~/.ssh"', ("masked must be a list",)),
        ('masked = ["ok/x"]', ("masked[0]", "absolute path", "~")),
        ('masked = ["/a", 3]', ("masked[1] must be a path",)),
        ('masked = ["~/*/x"]', ("masked[0]", "last component")),
        ('masked = ["/"]', ("masked[0]", "danger-full-access")),
        ('masked = ["~other/x"]', ("masked[0]", "absolute path")),
        ('masked = ["$FOO/x"]', ("masked[0]", "absolute path")),
        ('writable = ["/x*"]', ("writable[0]", "no *, ? or [")),
        ('writable = ["/a/../b"]', ("writable[0]", '".."')),
        ('writable = ["/a\\nb"]', ("writable[0]", "control characters")),
        ('writable = [""]', ("writable[0] must be a path",)),
        ('protected = ["/x"]', ("protected[0]", "relative")),
        ('protected = ["a/*"]', ("protected[0]", "no *")),
        ('protected = ["../x"]', ("protected[0]", '".."')),
        ('network = "off"', ("network must be one of", '"none"', '"host"')),
        ('devices = ["/etc/x"]', ("devices[0]", "/dev")),
        ('agents = ["keyring"]', ("agents[0]", '"ssh"', '"gpg"')),
        ('environment.keep = ["A_TOKEN"]', ("environment.keep[0]", "--env")),
        ('environment.keep = ["A*B"]', ("environment.keep[0]", "beginning")),
        ('environment.set.BASHD_X = "1"', ("environment.set.BASHD_X", "itself")),
        ('environment.set."A B" = "1"', ("environment.set.A B", "like a variable")),
        ("environment.set.A = 1", ("environment.set.A must be a string",)),
        ("environment.set = 1", ("environment.set must be a table",)),
        ('limits.pids = "none"', ("limits.pids", '"unlimited"')),
        ("limits.pids = 0", ("limits.pids must be", "not 0")),
        ("limits.pids = true", ("limits.pids must be",)),
        ("limits.cpu_weight = 10001", ("limits.cpu_weight", "at most 10000")),
        ("limits.open_files = 3", ("limits.open_files", "at least 16")),
        ("limits.core_bytes = -1", ("limits.core_bytes", "at least 0")),
        ("limits.cpu_s = inf", ("limits.cpu_s",)),
        ("command = 3", ("command must be written as [[command]]",)),
        ("command = [3]", ("command[0] must be a [[command]] table",)),
        ('[[command]]\npattern = "a"', ("command[0]", '"action"')),
        ('[[command]]\naction = "deny"', ("command[0]", '"pattern"')),
        (
            '[[command]]\npattern = "("\naction = "deny"',
            ("command[0].pattern", "regular expression"),
        ),
        ('[[command]]\npattern = 3\naction = "deny"', ("regular expression",)),
        (
            '[[command]]\npattern = "a"\naction = "refuse"',
            ("command[0].action must be one of",),
        ),
        (
            '[[command]]\npattern = "a"\naction = "deny"\nreasn = "b"',
            ("command[0]", '"reasn"', '"reason"?'),
        ),
        ("mode = ", ("not valid TOML",)),
    ],
)
def test_a_refusal_names_file_key_and_fix(text: str, words: tuple[str, ...]):
    message = refusal(text)
    for word in words:
        assert word in message
    assert "\n" not in message


def test_a_long_bad_value_is_cut_in_the_message():
    assert len(refusal(f'mode = "{"x" * 10_000}"')) < 300


json_values = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abmode.", min_size=1, max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


def outcome(key: str, value: object) -> object:
    try:
        return KEYS[key].kind.check(value)
    except BadValueError as error:
        return error


@given(st.sampled_from(sorted(KEYS)), json_values)
def test_any_value_is_accepted_whole_or_refused_in_words(key: str, value: object):
    result = outcome(key, value)
    if isinstance(result, BadValueError):
        assert result.text.startswith("must ")
    else:
        hash(result)


@given(st.text(max_size=40))
def test_no_text_crashes_the_parser(text: str):
    with contextlib.suppress(ConfigError):
        parse_policy(text, FILE)


@pytest.mark.parametrize("name", ["x", "ci", "my.policy-2", "A_b", "_x"])
def test_plain_words_name_policies(name: str):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/etc/x", "a/b", ".x", "a b", "x\n", "x" * 65]
)
def test_paths_do_not_name_policies(name: str):
    with pytest.raises(InvalidParamsError, match="policy's name"):
        check_name(name)


def test_the_schema_describes_every_key():
    described = schema()
    assert described["additionalProperties"] is False
    for key in KEYS:
        table: Any = described
        for part in key.split("."):
            table = table["properties"][part]
        assert table["description"]


def test_values_and_policies_convert_into_each_other():
    values = {k: v for k, v in stated(FULL).items() if k in EFFECT}
    policy = from_values("x", values, {})
    assert values_of(policy) == values
    assert policy.sockets == SocketRules(unix=True, grant=("/run/app.sock",))
    assert policy.limits.pids == 10


def test_the_digest_follows_the_effect_and_nothing_else():
    policy = Policy("a", masked=("/x",))
    alike = Policy(
        "b", description="words", masked=("/x",), sources={"masked": ("/some/file",)}
    )
    assert policy.digest == alike.digest
    assert len(policy.digest) == 64
    int(policy.digest, 16)


@pytest.mark.parametrize("key", [key for key in EFFECT if key != "description"])
def test_every_key_counts_in_the_digest(key: str):
    values = values_of(Policy("a"))
    other: dict[str, object] = {
        "mode": Mode.WORKSPACE_WRITE,
        "network": "none",
        "command": ((CommandRule("a", "deny"),),),
        "environment.default": (("A", "1"),),
        "environment.set": (("A", "1"),),
    }
    if key not in other:
        old = values[key]
        other[key] = not old if isinstance(old, bool) else 3 if old is None else ("/x",)
    changed = from_values("a", {**values, key: other[key]}, {})
    assert changed.digest != Policy("a").digest


def test_the_digest_is_the_same_in_every_process():
    assert Policy("a").digest == (
        "9454f135cabfc7e5486fee5e055da8a5c5a99d643917fcfe893736009dd7fa59"
    )


def test_expanding_puts_the_home_in():
    policy = Policy(
        "a",
        mode=Mode.WORKSPACE_WRITE,
        writable=("~/x", "/y", "~"),
        masked=("~/.ssh", "~x"),
        sockets=SocketRules(grant=("$XDG_RUNTIME_DIR/a.sock", "~/b.sock")),
    )
    expanded = expand(policy, "/home/u", "/run/user/7")
    assert expanded.writable == ("/home/u/x", "/y", "/home/u")
    assert expanded.masked == ("/home/u/.ssh", "~x")
    assert expanded.sockets.grant == ("/run/user/7/a.sock", "/home/u/b.sock")
    assert expanded.digest != policy.digest
    assert expand(expanded, "/other").masked == expanded.masked


def test_without_a_runtime_folder_nothing_in_it_exists():
    policy = Policy("a", sockets=SocketRules(grant=("$XDG_RUNTIME_DIR/a.sock",)))
    assert expand(policy, "/home/u").sockets.grant == ()


def test_a_home_at_the_root_expands():
    assert expand_path("~/.ssh", "/") == "/.ssh"
    assert expand_path("~", "/") == "/"


def test_extra_roots_count_in_workspace_write_only():
    roots = ("/x",)
    assert Policy("a", mode=Mode.READ_ONLY, writable=roots).writable_roots == ()
    assert (
        Policy("a", mode=Mode.WORKSPACE_WRITE, writable=roots).writable_roots == roots
    )


def test_a_policy_shown_as_toml_reads_back_the_same():
    values = {k: v for k, v in stated(FULL).items() if k in EFFECT}
    text = to_toml(values)
    assert stated(text) == values


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=10))
def test_any_setting_shown_as_toml_reads_back_the_same(value: str):
    values = {"environment.set": (("A", value),)}
    assert stated(to_toml(values)) == values


def test_sources_stand_in_comments():
    text = to_toml(
        {"mode": Mode.READ_ONLY, "limits.pids": 3}, {"mode": ("/a.toml", "/b.toml")}
    )
    assert text == (
        'mode = "read-only"  # /a.toml, /b.toml\n\n[limits]\npids = 3  # built in\n'
    )


def test_several_lists_of_rules_are_shown_apart():
    rules = ((CommandRule("a", "deny"),), (CommandRule("b", "ask"),))
    text = to_toml({"command": rules})
    assert "a list of its own" in text
    assert len(tomllib.loads(text)["command"]) == 2


def test_json_has_the_whole_effect():
    policy = Policy(
        "a",
        limits=Limits(pids=3),
        environment=EnvironmentRules(set=(("A", "1"),)),
        commands=((CommandRule("a", "deny", "no"),),),
    )
    shown = to_json(policy)
    assert shown["name"] == "a"
    assert shown["mode"] == "read-only"
    assert shown["limits"]["pids"] == 3
    assert shown["limits"]["cpu_s"] is None
    assert shown["environment"]["set"] == {"A": "1"}
    assert shown["commands"] == [[{"pattern": "a", "action": "deny", "reason": "no"}]]
