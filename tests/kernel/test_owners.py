"""Owners: files look like what they are, and what a command makes is the caller's.

A user's own daemon needs a user namespace under bwrap, in which only the caller's ids
exist; everywhere else the true owners show, so that ssh, git and sudo do not complain.
"""

from __future__ import annotations

from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    READ_ONLY,
    ROOT_BWRAP,
    ROOT_LANDLOCK,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    USER_LANDLOCK,
    Station,
    on,
)


@on(ROOT_BWRAP, ROOT_LANDLOCK, SERVED_BWRAP, SERVED_LANDLOCK, USER_LANDLOCK)
def test_i11_owners_outside_are_the_true_ones(station: Station):
    for mode in (*CONFINING, FULL_ACCESS):
        seen = station.text("stat -c %u:%g /etc/passwd /etc /usr/bin/bash", mode)
        assert seen.split() == ["0:0"] * 3, mode


def test_a_command_is_its_caller_with_the_callers_groups(station: Station):
    wanted = station.as_caller("id", "-u").stdout + station.as_caller("id", "-g").stdout
    groups = set(station.as_caller("id", "-G").stdout.split())
    for mode in (*CONFINING, FULL_ACCESS):
        assert station.text("id -u; id -g", mode) == wanted
        seen = set(station.text("id -G", mode).split())
        if station.in_user_namespace:
            # Groups that are not mapped there show as the overflow group.
            seen.discard("65534")
            assert seen <= groups
        else:
            assert seen == groups
    assert station.text("id -un").strip() == station.caller.name


def test_what_a_command_makes_belongs_to_the_caller(station: Station):
    station.text("touch a; mkdir d; touch d/b; ln -s a l; mkfifo p")
    own = (station.caller.uid, station.caller.gid)
    for path in station.workspace.rglob("*"):
        info = path.lstat()
        assert (info.st_uid, info.st_gid) == own, path
    assert station.text("stat -c %u a").strip() == str(station.caller.uid)
    station.text("rm -r -- *", mode="workspace-write")
    assert list(station.workspace.iterdir()) == []


def test_the_umask_is_the_usual_one(station: Station):
    # Not the daemon's, which keeps everything to itself.
    for mode in (*CONFINING, FULL_ACCESS):
        assert station.text("umask", mode) == "0022\n"


def test_home_and_names_are_the_callers(station: Station):
    wanted = f"{station.caller.home} {station.caller.name} {station.caller.name}\n"
    assert station.text("echo $HOME $USER $LOGNAME", READ_ONLY) == wanted
    assert station.text("cd && pwd", READ_ONLY) == f"{station.caller.home}\n"
