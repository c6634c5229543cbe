"""bashd.toml: defaults, what is refused, and how the message helps."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.config import KINDS, Config, LimitsConfig, parse_config
from bashd.core.errors import ConfigError
from bashd.core.model import Mode

FILE = "/etc/bashd/bashd.toml"

NUMERIC = [
    key
    for key, kind in KINDS.items()
    if kind.schema.get("type") in ("number", "integer")
]


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, FILE)
    assert caught.value.message.startswith(FILE + ": ")
    return caught.value.message


def line(key: str, value: str) -> str:
    section, _, name = key.partition(".")
    return f"[{section}]\n{name} = {value}\n"


def test_an_empty_file_gives_the_defaults():
    config = parse_config("", FILE)
    assert dataclasses.replace(
        config, source="built in", ceilings=Config().ceilings
    ) == (Config())


def test_defaults_are_the_contracts():
    config = Config()
    assert config.executor.timeout_ms == 120_000
    assert config.executor.max_timeout_ms == 600_000
    assert config.executor.max_output_bytes == 64_000
    assert config.executor.max_spill_bytes == 67_108_864
    assert config.executor.grace_ms == 3_000
    assert config.sandbox.mode is Mode.READ_ONLY
    assert config.sandbox.probe_timeout_ms == 5_000
    assert config.sandbox.runner == "auto"
    assert config.daemon.orphan_timeout_s == 60
    assert config.daemon.allow_root
    assert config.approval.policy == "ask"
    assert config.approval.wait_s == 300


def test_every_default_is_of_its_own_kind():
    for key, kind in KINDS.items():
        section, _, name = key.partition(".")
        if name:
            default = getattr(getattr(Config(), section), name)
            written = list(default) if isinstance(default, tuple) else default
            if default is not None:
                assert kind.check(written) == default, key


@pytest.mark.parametrize("key", NUMERIC)
@pytest.mark.parametrize(
    "value", ["nan", "inf", "-inf", "0", "-1", "-0.5", '"5"', "true", "[1]"]
)
def test_numbers_must_be_positive_and_finite(key: str, value: str):
    message = refusal(line(key, value))
    assert key in message
    assert "must be a positive finite number" in message


@pytest.mark.parametrize("key", NUMERIC)
def test_numbers_beyond_the_kernels_counters_are_refused(key: str):
    assert key in refusal(line(key, str(2**63)))


def test_grace_ends_where_timers_do():
    assert "at most 2147483647" in refusal(line("executor.grace_ms", "2147483648"))
    config = parse_config(line("executor.grace_ms", "2147483647"), FILE)
    assert config.executor.grace_ms == 2_147_483_647


def test_times_may_have_fractions_and_bytes_may_not():
    assert parse_config(line("executor.timeout_ms", "0.5"), FILE).executor == (
        dataclasses.replace(Config().executor, timeout_ms=0.5)
    )
    assert "without a fraction" in refusal(line("executor.max_output_bytes", "1.5"))
    config = parse_config(line("executor.max_output_bytes", "64e3"), FILE)
    assert config.executor.max_output_bytes == 64_000
    assert isinstance(config.executor.max_output_bytes, int)


@given(st.floats() | st.integers(-(2**70), 2**70))
def test_no_number_gets_through_that_is_not_positive_and_finite(value: float):
    kind = KINDS["executor.timeout_ms"]
    text = "nan" if math.isnan(value) else repr(value)
    try:
        config = parse_config(line("executor.timeout_ms", text), FILE)
    except ConfigError:
        assert not (math.isfinite(value) and 0 < value < 2**63)
    else:
        assert config.executor.timeout_ms == kind.check(value)
        assert math.isfinite(value)
        assert value > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[executer]\ncwd = '/'", ('"executer"', '"executor"')),
        ("[executor]\ntimeout = 5", ('"executor.timeout"', '"timeout_ms"')),
        ("[executor]\nrunner = 'auto'", ("another table", '"sandbox.runner"')),
        ("executor = 5", ("executor must be a table", "[executor]")),
        ("[sandbox]\nmode = 'workspace'", ("sandbox.mode", '"workspace-write"')),
        ("[sandbox]\nrunner = 'bubblewrap'", ("sandbox.runner", '"bwrap"')),
        ("[sandbox]\nbwrap_path = 'bwrap'", ("sandbox.bwrap_path", "absolute path")),
        ("[sandbox]\nworkspace_root = '/a/../b'", ('".."',)),
        ("[daemon]\nallow_root = 'no'", ("daemon.allow_root", "true or false")),
        ("[daemon]\ngroup = ''", ("daemon.group", "name of a group")),
        ("[daemon]\nconfined_callers = ['a/b']", ("daemon.confined_callers[0]",)),
        ("[approval]\npolicy = 'always'", ("approval.policy", '"ask", "never"')),
        ("[sandbox]\npolicy = '../x'", ("sandbox.policy", "policy's name")),
        ("[sandbox]\npolicy = 'ci'\nmode = 'read-only'", ("keep one of them",)),
        ("x = ?\n", ("not valid TOML", "line 1")),
        ("[a]\n[a]", ("not valid TOML", "line 2")),
    ],
)
def test_a_refusal_names_file_key_and_fix(text: str, words: tuple[str, ...]):
    message = refusal(text)
    for word in words:
        assert word in message


def test_a_policy_is_the_default_of_plain_calls():
    config = parse_config("[sandbox]\npolicy = 'ci'", FILE)
    ceiling = config.ceiling_of("u", (), home="/home/u")
    assert config.default_policy(ceiling) == "ci"
    assert Config().default_policy(ceiling) == "read-only"


CEILINGS = """
[sandbox]
mode = "danger-full-access"
[ceiling]
mode = "workspace-write"
network = "none"
[ceiling.limits]
pids = 100
[ceiling.quotas]
sessions = 10
[ceiling.group.builders]
mode = "danger-full-access"
limits.pids = 500
[ceiling.group.careful]
mode = "read-only"
masked = ["/srv/a"]
[ceiling.user.alice]
network = "host"
default_policy = "ci"
quotas.sessions = 99
"""


def test_the_ceiling_for_everybody_holds():
    config = parse_config(CEILINGS, FILE)
    ceiling = config.ceiling_of("bob", ("users",), home="/home/bob")
    assert ceiling.values == {
        "mode": Mode.WORKSPACE_WRITE,
        "network": "none",
        "limits.pids": 100,
    }
    assert ceiling.sources["mode"] == f"{FILE} [ceiling]"
    assert config.limits_under(ceiling).sessions == 10
    assert config.default_policy(ceiling) == "workspace-write"


def test_a_users_table_wins_key_by_key():
    config = parse_config(CEILINGS, FILE)
    ceiling = config.ceiling_of("alice", (), home="/home/alice")
    assert ceiling.values["network"] == "host"
    assert ceiling.values["mode"] is Mode.WORKSPACE_WRITE
    assert ceiling.sources["network"] == f"{FILE} [ceiling.user.alice]"
    assert config.limits_under(ceiling).sessions == 99
    assert config.limits_under(ceiling).tasks == LimitsConfig().tasks
    assert config.default_policy(ceiling) == "ci"


def test_a_groups_table_wins_over_the_one_for_everybody():
    ceiling = parse_config(CEILINGS, FILE).ceiling_of("bob", ["builders"], home="/h")
    assert ceiling.values["mode"] is Mode.DANGER_FULL_ACCESS
    assert ceiling.values["limits.pids"] == 500
    assert ceiling.values["network"] == "none"


@pytest.mark.parametrize("groups", [("builders", "careful"), ("careful", "builders")])
def test_of_several_groups_the_narrowest_holds(groups: tuple[str, ...]):
    ceiling = parse_config(CEILINGS, FILE).ceiling_of("bob", groups, home="/h")
    assert ceiling.values["mode"] is Mode.READ_ONLY
    assert ceiling.sources["mode"] == f"{FILE} [ceiling.group.careful]"
    assert ceiling.values["limits.pids"] == 500
    assert ceiling.values["masked"] == ("/srv/a",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[ceiling]\nmodus = 'x'", ('"ceiling.modus"', '"mode"')),
        ("[ceiling]\nunmasked = ['/x']", ('"ceiling.unmasked"', '"masked"')),
        ("[ceiling]\ndescription = 'x'", ('"ceiling.description"',)),
        ("[ceiling]\nenvironment.set.A = 'x'", ('"ceiling.environment.set"',)),
        ("[ceiling.user.a]\nmode = 'x'", ("ceiling.user.a.mode",)),
        ("[ceiling.user]\na = 3", ("ceiling.user.a must be a table",)),
        ("[ceiling]\ngroup = 3", ("ceiling.group must be a table",)),
        ("ceiling = 3", ("ceiling must be a table",)),
        ("[ceiling.quotas]\nsession = 3", ('"sessions"',)),
        ("[ceiling.quotas]\nsessions = 0", ("ceiling.quotas.sessions",)),
    ],
)
def test_a_wrong_ceiling_names_its_key(text: str, words: tuple[str, ...]):
    message = refusal(text)
    for word in words:
        assert word in message


GROUPS = """
[ceiling.group.a]
default_policy = "ci"
quotas.sessions = 5
limits.pids = 5
[ceiling.group.b]
default_policy = "mine"
quotas.sessions = 3
limits.pids = 9
"""


def test_groups_that_say_different_things():
    config = parse_config(GROUPS, FILE)
    ceiling = config.ceiling_of("u", ["a", "b"], home="/h")
    assert ceiling.default_policy == "ci"
    assert ceiling.values == {"limits.pids": 5}
    assert ceiling.sources == {"limits.pids": f"{FILE} [ceiling.group.a]"}
    assert config.limits_under(ceiling).sessions == 3


@pytest.mark.parametrize("number", ["1" * 5000, "0x" + "f" * 5000])
def test_an_endless_number_is_an_error_not_a_crash(number: str):
    refusal(line("executor.timeout_ms", number))


def test_deep_nesting_is_an_error_not_a_crash():
    assert "nested too deeply" in refusal("x = " + "[" * 100_000)
