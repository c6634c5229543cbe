"""Descriptors: a command has its three and no other, and the daemon gives all back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    ROOT_BWRAP,
    SERVED_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
)

Leaks = Callable[..., AbstractContextManager[None]]
LONG = "x" * 200_000
"""Longer than one argument of a process may be."""


def test_a_command_has_three_descriptors(station: Station):
    # ls in bash's place; it opens the folder it lists, and nothing else is there.
    listing = "exec ls -l /proc/self/fd"
    for mode, command, stdin in itertools.product(
        (*CONFINING, FULL_ACCESS), (listing, f": {LONG}; {listing}"), (None, b"text")
    ):
        lines = station.text(command, mode, stdin=stdin).splitlines()[1:]
        seen = dict(line.split()[-3::2] for line in lines)
        assert set(seen) == {"0", "1", "2", "3"}, seen
        assert seen["0"].startswith("pipe:" if stdin else "/dev/null")
        assert seen["1"].startswith("pipe:")
        assert seen["2"].startswith("pipe:")
        assert seen["1"] != seen["2"]
        assert seen["3"].startswith("/proc/")


def test_c145_stdin_is_the_null_device_unless_there_is_one(station: Station):
    checked = station.run("test -c /dev/stdin && cat && ! read x && echo empty")
    assert (checked.exit_code, checked.stdout.text) == (0, "empty\n")
    given = station.run("test -p /dev/stdin && cat; cat", stdin=b"hello\n")
    assert (given.exit_code, given.stdout.text) == (0, "hello\n")
    again = station.run("cat /dev/stdin; cat /proc/self/fd/0", stdin=b"once\n")
    assert (again.exit_code, again.stdout.text) == (0, "once\n"), again


@on(ROOT_BWRAP, SERVED_LANDLOCK)
def test_nothing_stays_behind_after_commands_of_every_kind(
    station: Station, leaks: Leaks
):
    def everything() -> None:
        station.run("echo x; echo y >&2")
        station.run("exit 3", stdin=b"x" * 200_000)
        station.run(f": {LONG}")
        station.run("sleep 600", timeout_ms=50)
        station.run("sleep 0.01 & exit 0")
        station.run("kill -KILL $$")
        station.run("true", workdir="/")
        task = station.client.start("echo x", mode=WORKSPACE_WRITE)
        station.client.wait(task.task_id)
        station.client.read_output(task.task_id)

    everything()
    # A task's output stays for its session; its file is the one thing that is new.
    with leaks(station.daemon, kinds=("descriptors", "mounts", "cgroups")):
        for _ in range(3):
            everything()


def test_output_can_be_re_opened_and_is_not_truncated(station: Station):
    result = station.run("echo one; echo two > /dev/stdout; echo three >> /dev/fd/1")
    assert result.stdout.text == "one\ntwo\nthree\n"
