"""A policy that grants namespaces grants no way out: the walls were there before them."""

from __future__ import annotations

import pytest

from bashd.client import SyncClient
from tests.adversarial.attack import with_policies
from tests.support.stations import (
    FULL_ACCESS,
    ROOT_BWRAP,
    ROOT_LANDLOCK,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    USER_BWRAP,
    Station,
    on,
)

EVERYWHERE = on(ROOT_BWRAP, USER_BWRAP, ROOT_LANDLOCK, SERVED_LANDLOCK)
INSIDE = "unshare --user --map-root-user --mount -- sh -c "


@pytest.fixture
def granted(station: Station) -> SyncClient:
    """A session for which ``granted`` is a policy with namespaces and a mask."""
    station.make("secrets/key", "hidden\n")
    return with_policies(
        station,
        granted='mode = "workspace-write"\nnamespaces = true\n'
        f'masked = ["{station.folder}/secrets"]\n',
    )


@on(USER_BWRAP, SERVED_BWRAP)
def test_a_namespace_of_ones_own_can_be_made_where_it_is_granted(
    station: Station, granted: SyncClient
):
    make = "unshare --user --map-root-user -- id -u"
    assert station.text(make, FULL_ACCESS) == "0\n"
    assert station.run(make).exit_code != 0
    allowed = granted.run(make, policy="granted")
    assert allowed.stdout.text == "0\n", allowed


@on(ROOT_BWRAP, ROOT_LANDLOCK, SERVED_LANDLOCK)
def test_uid_0_and_landlock_alone_can_make_one_and_map_nobody_into_it(
    station: Station, granted: SyncClient
):
    """Ids are mapped through /proc, where those may write nothing; the README says so."""
    make = "unshare --user -- id -u"
    assert station.text(make, FULL_ACCESS)
    assert station.run(make).exit_code != 0
    assert granted.run(make, policy="granted").exit_code == 0
    mapped = "unshare --user --map-root-user -- id -u"
    assert granted.run(mapped, policy="granted").exit_code != 0


@EVERYWHERE
def test_being_root_in_ones_own_namespace_opens_nothing(
    station: Station, granted: SyncClient
):
    canary = station.make("outside/canary")
    secrets = station.folder / "secrets"
    plain = station.run(
        f"{INSIDE} 'cat {secrets}/key; echo x >> {canary}'", FULL_ACCESS
    )
    assert plain.stdout.text == "hidden\n"
    assert canary.read_text() == "canary\nx\n", "without walls it works"
    canary.write_text("canary\n")
    for way in (
        f"umount {secrets}; umount -l {secrets}",
        "mount -o remount,bind,rw /; mount -o remount,rw /",
        f"mkdir -p m; mount --rbind / m; echo x >> m{canary}; cat m{secrets}/key",
        f"mkdir -p m; mount --bind {station.outside} m; echo x >> m/canary",
        f"chmod 777 {canary}",
        "mount -t proc proc /proc; mknod disk b 254 0; head -c 1 disk",
        "mount -t tmpfs none /tmp; mount --move /tmp /mnt; pivot_root . m; chroot /",
    ):
        attempt = f"{way}; cat {secrets}/key; echo x >> {canary}"
        result = granted.run(f"{INSIDE} '{attempt}'", policy="granted")
        assert "hidden" not in result.stdout.text, way
        assert canary.read_text() == "canary\n", way
