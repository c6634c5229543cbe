"""Files over files, modes over policies, ceilings over both."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from bashd.core.ceiling import Ceiling
from bashd.core.errors import ConfigError, NotAllowedError
from bashd.core.model import Mode
from bashd.core.policy import BUILT_IN, EFFECT, Policy, parse_policy
from bashd.core.policy_layers import narrow, overlay, start, under_ceiling, with_mode
from bashd.core.policy_values import CommandRule

HOME = "/home/u"
BASE = overlay(
    start("workspace-write"),
    parse_policy(
        """
        description = "base"
        mode = "workspace-write"
        writable = ["~/.cache"]
        masked = ["~/.ssh", "~/.aws"]
        protected = [".git/hooks", ".idea"]
        network = "host"
        environment.default = { A = "1" }
        environment.set = { B = "1", C = "1" }
        environment.drop = ["X"]
        limits.pids = 100
        limits.cpu_s = 10
        [[command]]
        pattern = "a"
        action = "deny"
        """,
        "/base.toml",
    ),
    name="workspace-write",
)


def laid(text: str, *, beneath: Policy = BASE, name: str = "mine") -> Policy:
    return overlay(beneath, parse_policy(text, "/f.toml"), name=name)


def narrowed(text: str, *, beneath: Policy = BASE) -> Policy:
    return narrow(beneath, parse_policy(text, "/u.toml"), home=HOME)


def ceiling(**values: Any) -> Ceiling:
    keys = {key.replace("__", "."): value for key, value in values.items()}
    return Ceiling(
        MappingProxyType(keys),
        MappingProxyType(dict.fromkeys(keys, "/etc/c [ceiling]")),
    )


def test_nothing_stated_is_built_in():
    assert start("x").sources == dict.fromkeys(EFFECT, (BUILT_IN,))
    assert start("x") == Policy("x")


def test_what_is_not_stated_is_inherited():
    policy = laid("limits.pids = 5")
    assert policy.name == "mine"
    assert policy.masked == BASE.masked
    assert policy.limits.pids == 5
    assert policy.limits.cpu_s == 10
    assert policy.sources["limits.pids"] == ("/f.toml",)
    assert policy.sources["limits.cpu_s"] == ("/base.toml",)
    assert policy.sources["devices"] == (BUILT_IN,)


def test_a_description_is_not_inherited_by_another_policy():
    assert laid("").description == ""
    assert laid("", name="workspace-write").description == "base"


def test_restrictions_add_and_grants_replace():
    policy = laid(
        """
        writable = ["/x"]
        masked = ["~/.kube", "~/.ssh"]
        protected = [".envrc"]
        environment.drop = ["Y"]
        [[command]]
        pattern = "b"
        action = "ask"
        """
    )
    assert policy.writable == ("/x",)
    assert policy.masked == ("~/.ssh", "~/.aws", "~/.kube")
    assert policy.protected == (".git/hooks", ".idea", ".envrc")
    assert policy.environment.drop == ("X", "Y")
    assert policy.commands == (
        (CommandRule("a", "deny"),),
        (CommandRule("b", "ask"),),
    )
    assert policy.sources["masked"] == ("/base.toml", "/f.toml")
    assert policy.sources["writable"] == ("/f.toml",)


def test_settings_add_name_by_name():
    policy = laid('environment.set = { B = "2", D = "2" }')
    assert dict(policy.environment.set) == {"B": "2", "C": "1", "D": "2"}
    assert dict(policy.environment.default) == {"A": "1"}


def test_entries_can_be_taken_out_by_name():
    policy = laid(
        'unmasked = ["$HOME/.aws"]\nunprotected = [".idea"]\nmasked = ["~/.kube"]'
    )
    assert policy.masked == ("~/.ssh", "~/.kube")
    assert policy.protected == (".git/hooks",)
    assert "/f.toml" in policy.sources["masked"]


def test_taking_out_what_is_not_there_is_an_error():
    with pytest.raises(ConfigError, match=r'/f.toml: unmasked: "~/.aw".*"~/.aws"\?'):
        laid('unmasked = ["~/.aw"]')


@pytest.mark.parametrize(
    "text",
    [
        'masked = ["/x"]',
        'writable = ["/x"]',
        "scratch = false",
        'network = "none"',
        "nested = true",
        "sockets.unix = true",
        'devices = ["/dev/kvm"]',
    ],
)
def test_walls_without_walls_are_an_error(text: str):
    open_policy = overlay(
        start("danger-full-access"),
        parse_policy('mode = "danger-full-access"', "/dfa.toml"),
        name="danger-full-access",
    )
    with pytest.raises(ConfigError, match="has no effect under mode"):
        laid(f'mode = "danger-full-access"\n{text}', beneath=open_policy)
    with pytest.raises(ConfigError, match=r"/u.toml: "):
        narrowed(text, beneath=open_policy)


def test_writable_roots_in_read_only_are_an_error():
    with pytest.raises(ConfigError, match='add mode = "workspace-write"'):
        laid('mode = "read-only"\nwritable = ["/x"]', beneath=start("read-only"))


def test_a_users_file_may_narrow():
    policy = narrowed(
        """
        mode = "read-only"
        network = "none"
        masked = ["~/private"]
        limits.pids = 50
        limits.memory_bytes = 1000000
        """
    )
    assert policy.mode is Mode.READ_ONLY
    assert policy.network == "none"
    assert policy.masked == (*BASE.masked, "~/private")
    assert policy.limits.pids == 50
    assert policy.limits.memory_bytes == 1_000_000
    assert policy.sources["network"] == ("/u.toml",)


def test_a_users_narrower_root_takes_the_place_of_the_wider():
    policy = narrowed('writable = ["/home/u/.cache/pip"]')
    assert policy.writable == ("/home/u/.cache/pip",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('mode = "danger-full-access"', ("mode", '"workspace-write"', "/base.toml")),
        ('writable = ["~/.cache", "/x"]', ("writable", '["~/.cache", "/x"]')),
        ("limits.pids = 101", ("limits.pids = 101", "100")),
        ('limits.pids = "unlimited"', ('limits.pids = "unlimited"', "100")),
        ("nested = true", ("nested = true", "false", BUILT_IN)),
        ('devices = ["/dev/kvm"]', ("devices", "[]")),
        ('unmasked = ["~/.aws"]', ("unmasked widens masked", "remove it")),
        ('unprotected = [".idea"]', ("unprotected widens protected",)),
    ],
)
def test_a_widening_users_file_names_file_key_ceiling_and_fix(
    text: str, words: tuple[str, ...]
):
    with pytest.raises(ConfigError) as caught:
        narrowed(text)
    message = caught.value.message
    assert message.startswith("/u.toml: ")
    assert "ask the administrator" in message
    for word in words:
        assert word in message


def test_an_empty_unmasked_widens_nothing():
    assert narrowed("unmasked = []") == BASE


def test_saying_the_same_changes_nothing():
    policy = narrowed('network = "host"\nlimits.pids = 100')
    assert policy == BASE
    assert policy.digest == BASE.digest
    assert policy.sources["network"] == ("/base.toml",)


def test_without_a_ceiling_a_policy_is_itself():
    assert under_ceiling(BASE, Ceiling(), home=HOME) is BASE


def test_a_ceiling_cuts_what_is_not_the_users():
    bounded = under_ceiling(
        BASE,
        ceiling(network="none", limits__pids=10, masked=("/srv",), writable=("/x",)),
        home=HOME,
    )
    assert bounded.network == "none"
    assert bounded.limits.pids == 10
    assert bounded.masked == (*BASE.masked, "/srv")
    assert bounded.writable == ()
    assert bounded.sources["network"] == ("/etc/c [ceiling]",)
    assert bounded.sources["masked"] == ("/base.toml", "/etc/c [ceiling]")
    assert bounded.digest != BASE.digest


def test_a_users_file_above_the_ceiling_is_an_error():
    policy = laid("limits.pids = 50")
    with pytest.raises(ConfigError) as caught:
        under_ceiling(
            policy, ceiling(limits__pids=10), home=HOME, user_files=["/f.toml"]
        )
    assert caught.value.message.startswith("/f.toml: limits.pids = 50 is wider than 10")
    assert "/etc/c [ceiling]" in caught.value.message


def test_a_users_file_without_the_ceilings_masks_gets_them():
    policy = laid('masked = ["~/mine"]')
    bounded = under_ceiling(
        policy, ceiling(masked=("/srv",)), home=HOME, user_files=["/f.toml"]
    )
    assert bounded.masked == (*policy.masked, "/srv")


def test_a_mode_beyond_the_ceiling_is_refused_not_changed():
    with pytest.raises(NotAllowedError) as caught:
        under_ceiling(BASE, ceiling(mode=Mode.READ_ONLY), home=HOME)
    message = caught.value.message
    assert '"workspace-write"' in message
    assert '"read-only"' in message
    assert "/etc/c [ceiling]" in message


@pytest.mark.parametrize("bound", [{"network": "none"}, {"masked": ("/x",)}])
def test_full_access_cannot_keep_a_ceilings_walls(bound: dict[str, Any]):
    policy = Policy("danger-full-access", mode=Mode.DANGER_FULL_ACCESS)
    with pytest.raises(NotAllowedError, match="has no walls"):
        under_ceiling(policy, ceiling(**bound), home=HOME)
    bounded = under_ceiling(policy, ceiling(limits__pids=5), home=HOME)
    assert bounded.limits.pids == 5


def test_a_ceiling_clamps_a_default_mode():
    assert ceiling(mode=Mode.READ_ONLY).clamp(Mode.WORKSPACE_WRITE) is Mode.READ_ONLY
    assert ceiling(mode=Mode.WORKSPACE_WRITE).clamp(Mode.READ_ONLY) is Mode.READ_ONLY
    assert Ceiling().clamp(Mode.DANGER_FULL_ACCESS) is Mode.DANGER_FULL_ACCESS


READ_ONLY = Policy(
    "read-only",
    mode=Mode.READ_ONLY,
    masked=("~/.ssh", "/ro"),
    sources={"mode": ("/ro.toml",), "masked": ("/ro.toml",)},
)
FULL = Policy("danger-full-access", mode=Mode.DANGER_FULL_ACCESS)


def test_a_policy_under_its_own_mode_is_itself():
    assert with_mode(BASE, Policy("m", mode=Mode.WORKSPACE_WRITE)) is BASE


def test_a_narrower_mode_brings_its_file_rules_and_keeps_the_rest():
    policy = with_mode(BASE, READ_ONLY)
    assert policy.name == "workspace-write"
    assert policy.mode is Mode.READ_ONLY
    assert policy.writable == ()
    assert policy.masked == ("~/.ssh", "~/.aws", "/ro")
    assert policy.environment == BASE.environment
    assert policy.limits == BASE.limits
    assert policy.commands == BASE.commands
    assert policy.sources["mode"] == ("/ro.toml",)
    assert policy.sources["masked"] == ("/base.toml", "/ro.toml")


def test_a_grant_keeps_the_policys_rest():
    careful = Policy(
        "careful",
        mode=Mode.READ_ONLY,
        network="none",
        masked=("/mine",),
        scratch=False,
    )
    granted = with_mode(careful, BASE)
    assert granted.mode is Mode.WORKSPACE_WRITE
    assert granted.network == "none"
    assert granted.writable == BASE.writable
    assert set(granted.masked) == {"/mine", *BASE.masked}
    assert granted.protected == BASE.protected
    assert not granted.scratch


def test_a_policy_without_walls_takes_all_of_them_from_the_mode():
    lax = Policy("lax", mode=Mode.DANGER_FULL_ACCESS, limits=BASE.limits)
    strict_mode = Policy(
        "workspace-write",
        mode=Mode.WORKSPACE_WRITE,
        network="none",
        masked=("~/.ssh",),
        scratch=False,
    )
    policy = with_mode(lax, strict_mode)
    assert policy.network == "none"
    assert policy.masked == ("~/.ssh",)
    assert not policy.scratch
    assert policy.limits == BASE.limits


def test_full_access_by_grant_changes_the_mode_alone():
    granted = with_mode(BASE, FULL)
    assert granted.mode is Mode.DANGER_FULL_ACCESS
    assert granted.limits == BASE.limits
    assert granted.environment == BASE.environment
