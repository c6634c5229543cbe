"""From a refusal to the rule behind it and the line that would allow it."""

from __future__ import annotations

import posixpath
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.model import Denial, Mode
from bashd.core.paths import is_below
from bashd.core.policy import Policy, expand_path, parse_policy
from bashd.core.policy_text import to_toml
from bashd.core.remedy import (
    Situation,
    allows,
    combined,
    network_remedy,
    remedy,
)

HOME, WORKSPACE = "/home/u", "/home/u/project"
POLICY = Policy(
    "work",
    mode=Mode.WORKSPACE_WRITE,
    writable=("~/cache",),
    masked=("~/.ssh", "/etc/shadow*", "~/.*_history"),
    protected=(".git/hooks", ".git/config", ".vscode"),
    network="none",
    sources={"masked": ("/p/work.toml",)},
)
WRITES = Situation(
    policy=POLICY,
    mode=Mode.WORKSPACE_WRITE,
    runner="bwrap",
    workspace=WORKSPACE,
    home=HOME,
    masked=(f"{HOME}/.ssh", "/etc/shadow", f"{HOME}/.bash_history"),
    protected=(f"{WORKSPACE}/.git/hooks", f"{WORKSPACE}/sub/.git/config"),
    writable=(WORKSPACE, f"{HOME}/cache", "/tmp"),
    own=("/var/lib/bashd",),
)
READS = replace(
    WRITES,
    policy=replace(POLICY, mode=Mode.READ_ONLY, writable=()),
    mode=Mode.READ_ONLY,
    protected=(),
    writable=("/tmp",),
)


def refused(operation: str, path: str | None) -> Denial:
    return Denial(path, operation, "stderr")


@pytest.mark.parametrize(
    ("under", "operation", "path", "key", "grants"),
    [
        (READS, "create", f"{WORKSPACE}/f", "mode", {"mode": "workspace-write"}),
        (
            READS,
            "create",
            "/opt/d/f",
            "mode",
            {"mode": "workspace-write", "writable": ("/opt/d",)},
        ),
        # The kernel names the folder alone where nobody said the name.
        (WRITES, "create", "/opt/d/", "writable", {"writable": ("~/cache", "/opt/d")}),
        (WRITES, "write", "/opt/d/f", "writable", {"writable": ("~/cache", "/opt/d")}),
        (
            WRITES,
            "remove",
            f"{HOME}/other/f",
            "writable",
            {"writable": ("~/cache", "~/other")},
        ),
        (WRITES, "create", "/f", "writable", {}),
        (WRITES, "read", f"{HOME}/.ssh/id", "masked", {"unmasked": ("~/.ssh",)}),
        (WRITES, "read", "/etc/shadow", "masked", {"unmasked": ("/etc/shadow*",)}),
        (
            WRITES,
            "write",
            f"{HOME}/.bash_history",
            "masked",
            {"unmasked": ("~/.*_history",)},
        ),
        (
            WRITES,
            "create",
            f"{WORKSPACE}/.git/hooks/pre-commit",
            "protected",
            {"unprotected": (".git/hooks",)},
        ),
        (
            WRITES,
            "write",
            f"{WORKSPACE}/sub/.git/config",
            "protected",
            {"unprotected": (".git/config",)},
        ),
        (
            WRITES,
            "rename",
            f"{WORKSPACE}/.git",
            "protected",
            {"unprotected": (".git/hooks",)},
        ),
        (WRITES, "write", "/dev/kvm", "devices", {"devices": ("/dev/kvm",)}),
        (
            WRITES,
            "connect",
            "/run/docker.sock",
            "sockets.grant",
            {"sockets.grant": ("/run/docker.sock",)},
        ),
        (
            replace(WRITES, runner="landlock"),
            "connect",
            f"{HOME}/agent",
            "sockets.grant",
            {"sockets.grant": ("~/agent",), "sockets.unix": True},
        ),
        (WRITES, "connect", "10.0.0.1:80", "network", {"network": "host"}),
        (WRITES, "mount", "/mnt", "namespaces", {"namespaces": True}),
        # What nothing allows.
        (WRITES, "connect", "@abstract", "", {}),
        (WRITES, "signal", "sshd", "", {}),
        (WRITES, "trace", "sshd", "", {}),
        (WRITES, "write", "/proc/sys/kernel/hostname", "", {}),
        (WRITES, "read", "/var/lib/bashd/records", "", {}),
        (WRITES, "read", "/root/x", "", {}),
        (WRITES, "write", f"{WORKSPACE}/f", "", {}),
        (WRITES, "write", None, "mode", {}),
    ],
)
def test_rule_and_narrowest_line(under, operation, path, key, grants):
    found = remedy(refused(operation, path), under)
    assert (found.key, dict(found.grants)) == (key, grants)
    assert found.rule
    assert found.grants or found.note, "neither a line nor a reason"


def test_a_broad_folder_comes_with_a_warning():
    assert "rely on" in remedy(refused("create", "/etc/x"), WRITES).note
    assert "whole home" in remedy(refused("create", f"{HOME}/x"), WRITES).note
    assert not remedy(refused("create", "/opt/own/x"), WRITES).note


def test_a_mask_that_hides_more_than_was_asked_for_says_so():
    assert "opens all of it" in remedy(refused("read", f"{HOME}/.ssh/id"), WRITES).note


names = st.text(st.sampled_from("abcd.-_ é"), min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..") and not set(name) & set("*?[")
)
paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(
    st.lists(
        st.tuples(st.sampled_from(["create", "write", "remove", "rename"]), paths),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([READS, WRITES]),
)
def test_the_policy_that_is_written_can_be_read_and_reaches_what_was_refused(
    refusals, under
):
    remedies = tuple(remedy(refused(*one), under) for one in refusals)
    values = combined(remedies, under.mode)
    if not values:
        assert not any(one.grants for one in remedies)
        return
    stated = parse_policy(to_toml(values), "explained.toml").values
    assert stated["mode"] is Mode.WORKSPACE_WRITE
    roots = [expand_path(path, HOME) for path in stated.get("writable", ())]
    for (_, path), one in zip(refusals, remedies, strict=True):
        if "writable" in one.grants:
            folder = posixpath.dirname(path)
            assert any(root is not None and is_below(folder, root) for root in roots)
            assert "/" not in roots


def test_what_is_allowed_by_one_policy_needs_no_second():
    remedies = (
        remedy(refused("create", "/opt/a/x"), WRITES),
        remedy(refused("create", "/opt/b/x"), WRITES),
        remedy(refused("read", f"{HOME}/.ssh/id"), WRITES),
        remedy(refused("signal", "sshd"), WRITES),
        network_remedy(WRITES),
    )
    assert combined(remedies, WRITES.mode) == {
        "mode": Mode.WORKSPACE_WRITE,
        "writable": ("~/cache", "/opt/a", "/opt/b"),
        "unmasked": ("~/.ssh",),
        "network": "host",
    }


def test_a_run_without_refusals_needs_no_policy():
    assert combined((), Mode.READ_ONLY) == {}
    nothing = remedy(refused("signal", "sshd"), READS)
    assert combined((nothing,), Mode.READ_ONLY) == {}


def test_a_ceiling_leaves_room_or_not():
    bounds = {
        "mode": Mode.READ_ONLY,
        "writable": ("/opt",),
        "masked": ("/etc/shadow*",),
        "network": "none",
    }
    assert not allows(bounds, "mode", Mode.WORKSPACE_WRITE, home=HOME)
    assert allows(bounds, "writable", ("/opt/x",), home=HOME)
    assert not allows(bounds, "writable", ("/srv",), home=HOME)
    assert not allows(bounds, "unmasked", ("/etc/shadow*",), home=HOME)
    assert allows(bounds, "unmasked", ("~/.ssh",), home=HOME)
    assert not allows(bounds, "network", "host", home=HOME)
    assert allows(bounds, "devices", ("/dev/kvm",), home=HOME)
