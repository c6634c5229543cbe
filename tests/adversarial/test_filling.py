"""Goal: fill what others need: the disk, its inodes, the memory behind /tmp.

What bounds processes, memory and processors is tested with the control groups, what
bounds output with the store, and what happens when a disk is full among the faults.
"""

from __future__ import annotations

from pathlib import Path

from tests.adversarial.attack import with_policies
from tests.support.stations import (
    FULL_ACCESS,
    ROOT_BWRAP,
    ROOT_LANDLOCK,
    SERVED_LANDLOCK,
    USER_BWRAP,
    Station,
    on,
)

EVERYWHERE = on(ROOT_BWRAP, USER_BWRAP, ROOT_LANDLOCK, SERVED_LANDLOCK)
MIB = 1024 * 1024


@EVERYWHERE
def test_no_file_grows_beyond_the_policys_limit(station: Station):
    session = with_policies(
        station, small=f'mode = "workspace-write"\nlimits.file_size_bytes = {MIB}\n'
    )
    ways = (
        "fallocate -l 3M {}",
        "head -c 3M /dev/zero > {}",
        "truncate -s 3M {}",
        "head -c 3M /dev/zero | dd bs=1M of={} 2>/dev/null",
        "python3 -c 'import os, sys; os.posix_fallocate(os.open(sys.argv[1], 66), 0,"
        " 3 << 20)' {}",
    )
    places = [str(station.workspace), "$TMPDIR"]
    if station.under_bwrap:
        places += ["/dev/shm", "/var/tmp"]
    size = "; stat -c %s {} 2>/dev/null || echo 0; rm -f {}"
    for way in ways:
        for place in places:
            file = f"{place}/big"
            command = (way + size).replace("{}", file)
            free = station.run(command, FULL_ACCESS).stdout.text.split()
            assert int(free[-1]) == 3 * MIB, (way, place)
            got = session.run(command, policy="small").stdout.text.split()
            assert int(got[-1]) <= MIB, (way, place)
    assert session.run("echo fine", policy="small").stdout.text == "fine\n"


@EVERYWHERE
def test_a_shipped_limit_is_less_than_a_disk(station: Station):
    refused = station.run("fallocate -l 1T big; truncate -s 1T big")
    assert refused.exit_code != 0
    big = station.workspace / "big"
    assert not big.exists() or big.stat().st_size < 2**40
    assert station.text("echo fine") == "fine\n"


@EVERYWHERE
def test_thousands_of_files_go_with_their_session(station: Station):
    make = (
        "cd $TMPDIR && mkdir -p a/b/c && cd a/b/c && seq 4000 | xargs touch"
        " && ls | wc -l && pwd -P"
    )
    other = station.open()
    made = other.run(make, mode="workspace-write").stdout.text.split()
    assert made[0] == "4000"
    session_id = other.session.session_id
    folders = [p for p in held(station, session_id) if p.name == "c"]
    assert folders, "they are in the session's own folder"
    other.sessions.close(session_id)
    assert held(station, session_id) == []
    assert station.text("echo fine") == "fine\n"


def held(station: Station, session_id: str) -> list[Path]:
    """Return the folders that are kept for a session."""
    return [
        path
        for path in station.daemon.state_dir.rglob("*")
        if session_id in path.parts and path.is_dir()
    ]
