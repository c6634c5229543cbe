"""Refusal or ordinary failure: by stderr alone, and with the kernel's records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.denial import MAX_DENIALS, Recorded, classify, decide
from bashd.core.model import Denial, Verdict

RUNNERS = ("bwrap", "landlock")
WALL = {"bwrap": "Read-only file system", "landlock": "Permission denied"}


def verdict(stderr: str, *, exit_code: int | None = 1, runner: str = "bwrap", **more):
    return classify(
        exit_code=exit_code, stderr=stderr, runner=runner, cwd="/w", **more
    )[0]


@pytest.mark.parametrize("runner", RUNNERS)
def test_exit_zero_is_never_a_denial_by_stderr(runner):
    stderr = "touch: /etc/x: Permission denied\ntouch: /etc/y: Read-only file system"
    assert verdict(stderr, exit_code=0, runner=runner) is Verdict.NONE


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_signal_death_is_never_a_denial_by_stderr(runner):
    assert verdict(f"x: {WALL[runner]}", exit_code=None, runner=runner) is Verdict.NONE


@pytest.mark.parametrize("runner", RUNNERS)
def test_operation_not_permitted_alone_is_no_denial(runner):
    stderr = "mount: Operation not permitted"
    assert verdict(stderr, runner=runner) is Verdict.NONE


def test_case_does_not_matter():
    assert verdict("READ-ONLY FILE SYSTEM") is Verdict.SUSPECTED
    assert verdict("EACCES: PERMISSION DENIED", runner="landlock") is Verdict.SUSPECTED


def test_each_runner_has_its_own_dialect():
    denied = "touch: cannot touch '/etc/x': Permission denied"
    read_only = "touch: cannot touch '/etc/x': Read-only file system"
    assert verdict(denied, runner="landlock") is Verdict.SUSPECTED
    assert verdict(denied, runner="bwrap") is Verdict.NONE
    assert verdict(read_only, runner="bwrap") is Verdict.SUSPECTED
    assert verdict(read_only, runner="landlock") is Verdict.NONE


def test_unconfined_commands_are_never_denied():
    everything = "\n".join(WALL.values())
    assert classify(exit_code=1, stderr=everything, runner=None)[0] is Verdict.NONE


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("stderr", "exit_code"),
    [
        ("", 1),
        ("bash: line 1: nosuchcmd: command not found", 127),
        ("", 126),
        ("app: Permission denied (publickey)", 255),
        ("ERROR:  permission denied for table users", 1),
        ("grep: /w/nope: No such file or directory", 2),
        ("landlock-run: fatal", 125),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", 1),
        # The mode of the file, not a wall: everything unmasked may be read and run.
        ("cat: /root/secret: Permission denied", 1),
        ("ls: cannot open directory '/root': Permission denied", 2),
        ("bash: line 1: ./script: Permission denied", 126),
    ],
)
def test_ordinary_failures_are_no_denials(stderr, exit_code, runner):
    assert verdict(stderr, exit_code=exit_code, runner=runner) is Verdict.NONE


@pytest.mark.parametrize("runner", RUNNERS)
def test_permission_denied_at_a_masked_path_is_a_denial(runner):
    masked = ["/home/u/.ssh"]
    stderr = "cat: /home/u/.ssh/id: Permission denied"
    found = classify(exit_code=1, stderr=stderr, runner=runner, masked=masked)
    expected = Denial("/home/u/.ssh/id", "read", "stderr")
    assert found == (Verdict.SUSPECTED, (expected,))


def test_what_is_visible_below_a_mask_is_not_masked():
    options: Any = {
        "masked": ["/state"],
        "visible": ["/state/s-1/tmp"],
        "runner": "landlock",
    }
    run = "bash: line 1: {}: Permission denied"
    for path, expected in (
        ("/state/records", Verdict.SUSPECTED),
        ("/state/s-1/tmp/plain", Verdict.NONE),
    ):
        assert verdict(run.format(path), exit_code=126, **options) is expected


def test_a_mask_is_recognised_by_another_name_of_it():
    stderr = "cat: /w/link/id: Permission denied"
    names = {"/w/link/id": "/home/u/.ssh/id"}
    assert verdict(stderr, masked=["/home/u/.ssh"]) is Verdict.NONE
    found = verdict(stderr, masked=["/home/u/.ssh"], resolve=lambda p: names.get(p, p))
    assert found is Verdict.SUSPECTED


@pytest.mark.parametrize("runner", RUNNERS)
def test_busy_counts_for_protected_paths_and_what_holds_them(runner):
    line = "mv: cannot move '{}' to 'x': Device or resource busy"
    protected = ["/w/.git/hooks"]
    for path in ("/w/.git/hooks", "/w/.git", ".git"):
        busy = f"rm: cannot remove '{path}': Device or resource busy"
        assert verdict(busy, runner=runner, protected=protected) is Verdict.SUSPECTED
    other = "umount: /mnt: Device or resource busy"
    assert verdict(other, runner=runner, protected=protected) is Verdict.NONE
    assert verdict(line.format("/w/.git"), runner=runner) is Verdict.NONE


@given(st.integers(1, 100))
def test_the_list_of_denials_is_bounded_and_holds_nothing_twice(count):
    lines = [
        f"rm: cannot remove '/e/{n % 40}': Read-only file system" for n in range(count)
    ]
    _, denials = classify(exit_code=1, stderr="\n".join(lines), runner="bwrap")
    assert len(denials) == min(len(set(lines)), MAX_DENIALS)
    assert len(set(denials)) == len(denials)


@given(st.text(max_size=400), st.sampled_from(RUNNERS), st.none() | st.integers(0, 255))
def test_any_stderr_can_be_judged(stderr, runner, exit_code):
    found, denials = classify(exit_code=exit_code, stderr=stderr, runner=runner)
    assert (found is Verdict.SUSPECTED) == bool(denials)
    assert not denials or exit_code


# -- with the kernel's records -----------------------------------------------------------

SUSPICION = Denial("/etc/zz", "create", "stderr")
IN_ETC = Denial("/etc", "create", "kernel", "touch")
ON_HOSTS = Denial("/etc/hosts", "write", "kernel", "bash")
FOLDERS = frozenset({"/etc", "/opt"})


def test_without_records_stderr_decides():
    assert decide((SUSPICION,), None, runner="landlock")[0] is Verdict.SUSPECTED
    assert decide((), None, runner="landlock")[0] is Verdict.NONE


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_recorded_refusal_is_a_fact_even_where_nobody_complained(runner):
    found = decide((), Recorded((ON_HOSTS,), silence_counts=True), runner=runner)
    assert found == (Verdict.DENIED, (ON_HOSTS,))


def test_under_landlock_silence_clears_an_applications_own_words():
    recorded = Recorded(silence_counts=True)
    assert decide((SUSPICION,), recorded, runner="landlock") == (Verdict.NONE, ())


def test_under_bwrap_silence_clears_nobody():
    recorded = Recorded(silence_counts=True)
    found = decide((SUSPICION,), recorded, runner="bwrap")
    assert found == (Verdict.SUSPECTED, (SUSPICION,))


@pytest.mark.parametrize("runner", RUNNERS)
def test_where_records_were_lost_stderr_counts_and_silence_means_unknown(runner):
    lost = Recorded(lost=True)
    assert decide((SUSPICION,), lost, runner=runner)[0] is Verdict.SUSPECTED
    assert decide((), lost, runner=runner) == (Verdict.UNKNOWN, ())


def test_stderr_gives_a_recorded_creation_its_name():
    recorded = Recorded((IN_ETC,), FOLDERS, silence_counts=True)
    found = decide((SUSPICION,), recorded, runner="landlock")
    expected = Denial("/etc/zz", "create", "kernel", "touch")
    assert found == (Verdict.DENIED, (expected,))


def test_one_record_for_many_entries_of_a_folder_names_them_all():
    others = tuple(Denial(f"/etc/{n}", "create", "stderr") for n in range(3))
    recorded = Recorded((IN_ETC,), FOLDERS, silence_counts=True)
    _, denials = decide(others, recorded, runner="landlock")
    assert [d.path for d in denials] == ["/etc/0", "/etc/1", "/etc/2"]
    assert {d.evidence for d in denials} == {"kernel"}


def test_names_go_to_the_record_of_the_same_operation():
    removal = Denial("/etc", "remove", "kernel", "rm")
    removed = Denial("/etc/hosts", "remove", "stderr")
    recorded = Recorded((IN_ETC, removal), FOLDERS, silence_counts=True)
    _, denials = decide((SUSPICION, removed), recorded, runner="landlock")
    assert [(d.path, d.operation, d.process) for d in denials] == [
        ("/etc/zz", "create", "touch"),
        ("/etc/hosts", "remove", "rm"),
    ]


def test_a_vague_complaint_takes_the_operation_of_its_record():
    vague = Denial("/etc/zz", "access", "stderr")
    recorded = Recorded((IN_ETC,), FOLDERS, silence_counts=True)
    _, denials = decide((vague,), recorded, runner="landlock")
    assert denials == (Denial("/etc/zz", "create", "kernel", "touch"),)


def test_suspicions_that_no_record_speaks_of_stay_only_where_records_may_lack():
    recorded = Recorded((ON_HOSTS,), silence_counts=True)
    _, denials = decide((SUSPICION,), recorded, runner="landlock")
    assert denials == (ON_HOSTS,)
    _, denials = decide((SUSPICION,), recorded, runner="bwrap")
    assert denials == (ON_HOSTS, SUSPICION)
    _, denials = decide((SUSPICION,), Recorded((ON_HOSTS,)), runner="landlock")
    assert denials == (ON_HOSTS, SUSPICION)
