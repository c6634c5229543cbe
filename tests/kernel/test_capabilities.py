"""Capabilities: none, in any set, and no way to get one back."""

from __future__ import annotations

import os

import pytest

from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    ROOT_BWRAP,
    ROOT_LANDLOCK,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    Station,
    on,
)

NOBODY = 65534
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def status(station: Station, mode: str) -> dict[str, int]:
    """Return what a command's /proc/self/status says of its privileges."""
    seen = station.text("grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status", mode)
    fields = (line.split(":") for line in seen.splitlines())
    return {name: int(value, 16) for name, value in fields}


@on(ROOT_BWRAP, ROOT_LANDLOCK, SERVED_BWRAP, SERVED_LANDLOCK)
@pytest.mark.parametrize("mode", CONFINING)
def test_a_root_daemons_commands_have_no_capability_in_any_set(
    station: Station, mode: str
):
    found = status(station, mode)
    assert {name: found[name] for name in SETS} == dict.fromkeys(SETS, 0)
    assert found["NoNewPrivs"] == 1
    assert found["Seccomp"] == 2


@pytest.mark.parametrize("mode", CONFINING)
def test_no_command_has_a_capability_it_could_use(station: Station, mode: str):
    found = status(station, mode)
    # The bounding set is not the user's to drop; no_new_privs makes it worth nothing.
    usable = {name: found[name] for name in SETS if name != "CapBnd"}
    assert set(usable.values()) == {0}
    assert found["NoNewPrivs"] == 1


@on(ROOT_BWRAP, ROOT_LANDLOCK)
def test_root_without_capabilities_is_an_ordinary_user_of_its_own_files(
    station: Station,
):
    secret = station.folder / "outside" / "not roots"
    secret.write_text("secret\n")
    station.as_caller("chown", "65534:65534", str(secret))
    secret.chmod(0o600)
    assert station.text(f"cat '{secret}'", FULL_ACCESS) == "secret\n"
    for mode in CONFINING:
        assert station.run(f"cat '{secret}'", mode).exit_code == 1
        assert station.run("chown 65534 .", mode).exit_code == 1
        assert station.run("mknod node b 8 0", mode).exit_code == 1
        assert station.run("kill -0 1 && setpriv --reuid=65534 true", mode).exit_code


@on(SERVED_BWRAP, SERVED_LANDLOCK)
def test_set_uid_programs_gain_nothing_behind_walls(station: Station):
    # A set-uid copy of `id` shows who it runs as.
    program = station.folder / "outside" / "who"
    station.as_caller("cp", "/usr/bin/id", str(program))
    os.chown(program, NOBODY, NOBODY)
    program.chmod(0o4755)
    assert station.text(f"{program} -u", FULL_ACCESS) == f"{NOBODY}\n"
    for mode in CONFINING:
        assert station.text(f"{program} -u", mode) == f"{station.caller.uid}\n"
