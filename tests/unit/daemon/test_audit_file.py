"""The audit log on disk: one chain across files, daemons, crashes and full disks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bashd.core.audit_chain import Head, Verdict, verify
from bashd.daemon.audit_file import AuditFile, head_path

LARGE = 1 << 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def entry(number: int) -> dict[str, Any]:
    return {"event": "run", "n": number}


def files_of(path: Path) -> list[Path]:
    aside = sorted(
        path.parent.glob(f"{path.name}.[0-9]*"),
        key=lambda p: int(p.suffix[1:]),
        reverse=True,
    )
    return [*aside, path]


def check(path: Path) -> Verdict:
    files = [(p.name, p.read_bytes().splitlines()) for p in files_of(path)]
    return verify(files, Head.parse(head_path(path).read_text()))


def test_lines_are_private_and_one_chain(path: Path):
    log = AuditFile(path, rotate_bytes=LARGE, keep_files=2)
    first = log.append([entry(1), entry(2)])
    second = log.append([entry(3)])
    assert [link.number for link in (*first, *second)] == [1, 2, 3]
    assert check(path).problems == []
    assert {p.stat().st_mode & 0o777 for p in (path, head_path(path))} == {0o600}


def test_another_daemon_goes_on_where_the_last_one_ended(path: Path):
    for number in range(3):
        log = AuditFile(path, rotate_bytes=LARGE, keep_files=2)
        log.append([entry(number)])
        log.close()
    verdict = check(path)
    assert (verdict.problems, verdict.lines) == ([], 3)


# Files: how long one takes says nothing about the code.
on_disk = settings(deadline=None, max_examples=30)


@on_disk
@given(st.integers(1, 60), st.integers(200, 1200), st.integers(1, 4))
def test_rotation_keeps_the_chain_and_the_bounds(tmp_path_factory, count, size, keep):
    path = tmp_path_factory.mktemp("log") / "audit.jsonl"
    log = AuditFile(path, rotate_bytes=size, keep_files=keep)
    for number in range(count):
        log.append([entry(number)])
    verdict = check(path)
    assert verdict.problems == []
    assert verdict.last is not None
    assert verdict.last.number == count
    files = files_of(path)
    assert len(files) <= keep + 1
    line = len(path.read_bytes().splitlines()[0]) + 1
    assert all(p.stat().st_size <= max(size, line) for p in files)


def test_removing_the_oldest_file_shows(path: Path):
    log = AuditFile(path, rotate_bytes=600, keep_files=5)
    for number in range(12):
        log.append([entry(number)])
    assert len(files_of(path)) > 2
    files_of(path)[0].unlink()
    assert "oldest lines are missing" in check(path).problems[0].what


def test_an_unfinished_line_is_taken_away_and_the_rest_stays_whole(path: Path):
    log = AuditFile(path, rotate_bytes=LARGE, keep_files=1)
    log.append([entry(1), entry(2)])
    log.close()
    with path.open("ab") as file:
        file.write(b'{"seq":3,"prev":"ab')
    AuditFile(path, rotate_bytes=LARGE, keep_files=1).append([entry(3)])
    verdict = check(path)
    assert (verdict.problems, verdict.lines) == ([], 3)


def test_a_daemon_that_died_before_it_wrote_the_head_is_followed(path: Path):
    log = AuditFile(path, rotate_bytes=LARGE, keep_files=1)
    log.append([entry(1)])
    old_head = head_path(path).read_text()
    log.append([entry(2)])
    log.close()
    head_path(path).write_text(old_head)
    AuditFile(path, rotate_bytes=LARGE, keep_files=1).append([entry(3)])
    verdict = check(path)
    assert (verdict.problems, verdict.lines) == ([], 3)


def test_a_line_cut_off_while_no_daemon_ran_shows_for_ever(path: Path):
    log = AuditFile(path, rotate_bytes=LARGE, keep_files=1)
    log.append([entry(1), entry(2), entry(3)])
    log.close()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    AuditFile(path, rotate_bytes=LARGE, keep_files=1).append([entry(4)])
    assert [p.what for p in check(path).problems] == ["1 line is missing before it"]


def test_a_log_that_was_moved_away_begins_anew_where_it_ended(path: Path):
    log = AuditFile(path, rotate_bytes=LARGE, keep_files=1)
    log.append([entry(1)])
    path.rename(path.with_name("audit.jsonl.1"))
    log.append([entry(2)])
    verdict = check(path)
    assert (verdict.problems, verdict.lines) == ([], 2)


def test_a_log_is_never_written_through_a_link(path: Path, tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    path.symlink_to(victim)
    with pytest.raises(OSError, match="audit"):
        AuditFile(path, rotate_bytes=LARGE, keep_files=1).append([entry(1)])
    assert victim.read_text() == "precious\n"


FULL = """
import resource, signal, sys
from pathlib import Path
from bashd.daemon.audit_file import AuditFile

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = AuditFile(Path(sys.argv[1]), rotate_bytes=1 << 30, keep_files=1)
log.append([{"n": 1}])
size = Path(sys.argv[1]).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, resource.RLIM_INFINITY))
try:
    log.append([{"n": 2}, {"n": 3}])
except OSError:
    pass
else:
    sys.exit("it was written")
assert Path(sys.argv[1]).stat().st_size == size, "half a line is left"
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
log.append([{"n": 2}, {"n": 3}])
"""


def test_a_full_disk_leaves_no_half_line_and_loses_no_number(path: Path):
    subprocess.run([sys.executable, "-c", FULL, str(path)], check=True)
    verdict = check(path)
    assert (verdict.problems, verdict.lines) == ([], 3)


@on_disk
@given(st.binary(max_size=300))
def test_whatever_lies_in_its_place_can_be_followed(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("log") / "audit.jsonl"
    path.write_bytes(content)
    log = AuditFile(path, rotate_bytes=LARGE, keep_files=1)
    links = log.append([entry(1)])
    assert [link.number for link in links] == [1]
    assert path.read_bytes().endswith(b"}\n")
