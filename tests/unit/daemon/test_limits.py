"""Limits of single processes stand in where no cgroup keeps the policy's."""

from __future__ import annotations

import os
import resource
import subprocess

from bashd.core.policy import Limits
from bashd.daemon.limits import rlimits, threads_of

LIMITS = Limits(pids=100, memory_bytes=1 << 20, open_files=64, core_bytes=0)
NONE: frozenset[str] = frozenset()


def of(
    limits: Limits = LIMITS,
    *,
    kept: frozenset[str] = NONE,
    others: int | None = 0,
    open_files: int = 32,
) -> dict[int, tuple[int, int]]:
    found = rlimits(limits, kept=kept, others=others, open_files=open_files)
    return {kind: (soft, hard) for kind, soft, hard in found}


def test_what_a_cgroup_keeps_is_not_limited_twice():
    kept = of(kept=frozenset({"pids", "memory"}), others=7)
    assert kept == {resource.RLIMIT_NOFILE: (32, 64), resource.RLIMIT_CORE: (0, 0)}


def test_processes_of_the_user_count_on_top_of_the_policys():
    assert of(others=7)[resource.RLIMIT_NPROC] == (107, 107)


def test_root_gets_no_limit_that_would_not_bind_it():
    assert resource.RLIMIT_NPROC not in of(others=None)


def test_memory_is_bounded_by_what_can_be_written_not_by_address_space():
    found = of()
    assert found[resource.RLIMIT_DATA] == (1 << 20, 1 << 20)
    assert resource.RLIMIT_AS not in found


def test_unlimited_policy_limits_nothing_but_where_descriptors_start():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert of(Limits()) == {resource.RLIMIT_NOFILE: (32, hard)}


def test_descriptors_start_no_higher_than_the_policy_allows():
    assert of(open_files=100)[resource.RLIMIT_NOFILE] == (64, 64)
    assert of(open_files=resource.RLIM_INFINITY)[resource.RLIMIT_NOFILE] == (64, 64)


def test_threads_of_counts_what_belongs_to_the_user():
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            # This process and the new one; others come and go on a busy machine.
            assert threads_of(os.getuid()) >= 2
        finally:
            process.kill()
    assert threads_of(2**31) == 0
