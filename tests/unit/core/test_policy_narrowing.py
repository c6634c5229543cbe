"""Laying files over one another takes away and never gives, key by key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bashd.core.ceiling import Ceiling, join
from bashd.core.errors import ConfigError, NotAllowedError
from bashd.core.model import Mode
from bashd.core.narrowing import meet, within
from bashd.core.policy import (
    EFFECT,
    PolicyFile,
    expand_path,
    from_values,
    values_of,
)
from bashd.core.policy_layers import narrow, under_ceiling
from bashd.core.policy_schema import KEYS, Key, Order
from bashd.core.policy_values import CommandRule

HOME = "/home/u"

whole_policies = settings(max_examples=40)
"""Two dozen keys a policy: each example tries all of them."""

_PATHS = ("~", "~/a", "~/a/b", "~/ab", "/home/u/a", "/home", "/srv", "/srv/x", "/s")
_NAMES = ("*", "L*", "LC_*", "LC_ALL", "LANG", "PATH", "P*")
_RULES = st.builds(
    CommandRule, st.sampled_from(["a", "b"]), st.sampled_from(["allow", "ask", "deny"])
)


def _lists(words: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(words), max_size=4, unique=True).map(tuple)


_BY_ORDER: dict[Order, st.SearchStrategy[Any]] = {
    Order.SWITCH: st.booleans(),
    Order.LIMIT: st.none() | st.integers(16, 20),
    Order.PATHS: _lists(_PATHS),
    Order.ADDED: _lists(_PATHS),
    Order.NAMES: _lists(_NAMES),
    Order.RULES: st.lists(
        st.lists(_RULES, min_size=1, max_size=2).map(tuple), max_size=2, unique=True
    ).map(tuple),
    Order.FREE: st.sampled_from(["x", "y"]),
    Order.SETTINGS: st.sampled_from([(), (("A", "1"),), (("A", "2"), ("B", "3"))]),
}


def values_for(name: str) -> st.SearchStrategy[Any]:
    """Values a file may state for a key."""
    if name == "mode":
        return st.sampled_from(Mode)
    if KEYS[name].order is Order.RANK:
        return st.sampled_from(KEYS[name].words)
    return _BY_ORDER[KEYS[name].order]


BOUND = tuple(name for name in EFFECT if KEYS[name].order.bounds)
pairs = st.sampled_from(BOUND).flatmap(
    lambda name: st.tuples(st.just(KEYS[name]), values_for(name), values_for(name))
)
policies = st.fixed_dictionaries({name: values_for(name) for name in EFFECT}).map(
    lambda values: from_values("p", values, {})
)
files = st.fixed_dictionaries(
    {}, optional={name: values_for(name) for name in EFFECT}
).map(lambda values: PolicyFile("/u/p.toml", values))
ceilings = st.fixed_dictionaries(
    {}, optional={name: values_for(name) for name in BOUND}
).map(lambda values: Ceiling(values, dict.fromkeys(values, "/etc/c [ceiling]")))


def grants(key: Key, value: Any) -> set[str]:
    """What a list of paths or names lets through, out of a small world."""
    if key.order is Order.NAMES:
        world = ("LC_ALL", "LC_TIME", "LANG", "PATH", "PAGER", "HOME", "L")
        return {
            name
            for name in world
            for item in value
            if name == item or (item.endswith("*") and name.startswith(item[:-1]))
        }
    world = (
        HOME,
        "/home/u/a",
        "/home/u/a/b",
        "/home/u/ab",
        "/home/v",
        "/srv/x",
        "/s/x",
    )
    expanded = [expand_path(item, HOME) or item for item in value]
    return {
        path
        for path in world
        for item in expanded
        if path == item or path.startswith(item + "/")
    }


@given(pairs)
def test_the_meet_lies_within_both(pair: tuple[Key, Any, Any]):
    key, a, b = pair
    both = meet(key, a, b, home=HOME)
    assert within(key, both, a, home=HOME)
    assert within(key, both, b, home=HOME)


@given(pairs)
def test_the_meet_of_what_is_within_is_that(pair: tuple[Key, Any, Any]):
    key, a, b = pair
    assert meet(key, a, a, home=HOME) == a
    if within(key, a, b, home=HOME) and not key.order.adds:
        assert meet(key, a, b, home=HOME) == a


@given(pairs)
def test_the_order_of_arguments_does_not_change_what_is_granted(
    pair: tuple[Key, Any, Any],
):
    key, a, b = pair
    one, other = meet(key, a, b, home=HOME), meet(key, b, a, home=HOME)
    assert within(key, one, other, home=HOME)
    assert within(key, other, one, home=HOME)


@given(pairs)
def test_everything_is_within_itself(pair: tuple[Key, Any, Any]):
    key, a, _ = pair
    assert within(key, a, a, home=HOME)


@given(pairs, st.data())
def test_within_is_transitive(pair: tuple[Key, Any, Any], data: st.DataObject):
    key, a, b = pair
    name = next(name for name in BOUND if KEYS[name] is key)
    c = data.draw(values_for(name))
    if within(key, a, b, home=HOME) and within(key, b, c, home=HOME):
        assert within(key, a, c, home=HOME)


@given(pairs)
def test_lists_grant_no_more_than_both_lists_do(pair: tuple[Key, Any, Any]):
    key, a, b = pair
    if key.order not in (Order.PATHS, Order.NAMES):
        return
    both = meet(key, a, b, home=HOME)
    assert grants(key, both) == grants(key, a) & grants(key, b)
    if within(key, a, b, home=HOME):
        assert grants(key, a) <= grants(key, b)


@whole_policies
@given(policies, files)
def test_a_users_file_never_widens_a_key(policy: Any, file: PolicyFile):
    try:
        narrowed = narrow(policy, file, home=HOME)
    except ConfigError:
        return
    before, after = values_of(policy), values_of(narrowed)
    for name in BOUND:
        assert within(KEYS[name], after[name], before[name], home=HOME), name
    for name, value in file.values.items():
        if name in BOUND:
            assert within(KEYS[name], after[name], value, home=HOME), name


@whole_policies
@given(policies, files)
def test_a_users_file_laid_over_twice_is_as_once(policy: Any, file: PolicyFile):
    try:
        once = narrow(policy, file, home=HOME)
    except ConfigError:
        return
    assert narrow(once, file, home=HOME) == once


@whole_policies
@given(policies, st.data())
def test_a_file_within_is_accepted(policy: Any, data: st.DataObject):
    if not policy.mode.confines:
        return
    before = values_of(policy)
    narrower = {
        name: meet(KEYS[name], data.draw(values_for(name)), before[name], home=HOME)
        for name in BOUND
        if name not in ("mode", "writable")
    }
    narrow(policy, PolicyFile("/u/p.toml", narrower), home=HOME)


@whole_policies
@given(policies, ceilings)
def test_nothing_passes_a_ceiling(policy: Any, ceiling: Ceiling):
    try:
        bounded = under_ceiling(policy, ceiling, home=HOME)
    except NotAllowedError:
        wider = policy.mode.is_wider_than(ceiling.mode)
        walls = any(KEYS[name].walls for name in ceiling.values)
        assert wider or (walls and not policy.mode.confines)
        return
    before, after = values_of(policy), values_of(bounded)
    for name in BOUND:
        assert within(KEYS[name], after[name], before[name], home=HOME), name
    for name, bound in ceiling.values.items():
        assert within(KEYS[name], after[name], bound, home=HOME), name
    assert under_ceiling(bounded, ceiling, home=HOME) == bounded


@whole_policies
@given(ceilings, ceilings)
def test_joined_ceilings_keep_both(first: Ceiling, second: Ceiling):
    joined = join(first, second, home=HOME)
    assert joined.values.keys() == first.values.keys() | second.values.keys()
    assert joined.sources.keys() == joined.values.keys()
    for one in (first, second):
        for name, bound in one.values.items():
            assert within(KEYS[name], joined.values[name], bound, home=HOME)


@pytest.mark.parametrize(
    ("name", "narrower", "wider"),
    [
        ("mode", Mode.READ_ONLY, Mode.WORKSPACE_WRITE),
        ("mode", Mode.WORKSPACE_WRITE, Mode.DANGER_FULL_ACCESS),
        ("writable", ("~/a/b",), ("~/a",)),
        ("writable", ("/home/u/a",), ("~",)),
        ("writable", (), ("/x",)),
        ("masked", ("/x", "/y"), ("/x",)),
        ("protected", (".git",), ()),
        ("scratch", False, True),
        ("network", "none", "host"),
        ("nested", False, True),
        ("namespaces", False, True),
        ("devices", ("/dev/dri/card0",), ("/dev/dri",)),
        ("agents", ("ssh",), ("gpg", "ssh")),
        ("sockets.unix", False, True),
        ("sockets.grant", (), ("/run/x.sock",)),
        ("environment.keep", ("LC_ALL",), ("LC_*",)),
        ("environment.keep", ("LC_*",), ("L*",)),
        ("environment.keep", ("PATH",), ("*",)),
        ("environment.drop", ("A",), ()),
        ("limits.pids", 1, 2),
        ("limits.memory_bytes", 10, None),
        ("limits.cpu_weight", 10, 100),
        ("limits.cpu_s", 10, None),
        ("limits.job_s", 10, 11),
        ("limits.file_size_bytes", 0, 1),
        ("limits.shm_bytes", 4096, None),
        ("limits.open_files", 16, 17),
        ("limits.core_bytes", 0, None),
        ("command", ((CommandRule("a", "deny"),),), ()),
    ],
)
def test_which_end_is_the_narrow_one(name: str, narrower: Any, wider: Any):
    key = KEYS[name]
    assert within(key, narrower, wider, home=HOME)
    assert not within(key, wider, narrower, home=HOME)


@pytest.mark.parametrize("name", ["description", "environment.set"])
def test_keys_without_an_order_are_never_wider(name: str):
    key = KEYS[name]
    assert within(key, "x", "y", home=HOME)
    assert meet(key, "x", "y", home=HOME) == "x"


@pytest.mark.parametrize(
    ("a", "b"), [("~/a", "~/ab"), ("/srv/x", "/srv/y"), ("~/a", "/home/v/a")]
)
def test_neighbouring_paths_do_not_cover_each_other(a: str, b: str):
    key = KEYS["writable"]
    assert not within(key, (a,), (b,), home=HOME)
    assert not within(key, (b,), (a,), home=HOME)
    assert meet(key, (a,), (b,), home=HOME) == ()
