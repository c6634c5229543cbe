"""One daemon of root's, two ordinary users in its group, and root beside them."""

from __future__ import annotations

import dataclasses
import secrets
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.conftest import RUNNERS, daemon_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.accounts import Account
    from tests.support.daemons import RunningDaemon, Settings
    from tests.support.stage import Install


@dataclass
class Crowd:
    """The daemon as each of its callers sees it."""

    alice: RunningDaemon
    bob: RunningDaemon
    root: RunningDaemon

    @property
    def users(self) -> tuple[RunningDaemon, RunningDaemon]:
        """The ordinary ones."""
        return self.alice, self.bob


@pytest.fixture(scope="session")
def shared_group(ordinary_user: Account, second_user: Account) -> Iterator[str]:
    """A group with both users in it."""
    name = f"bashd-t-{secrets.token_hex(4)}"
    members = f"{ordinary_user.name},{second_user.name}"
    subprocess.run(["groupadd", name], check=True)
    try:
        subprocess.run(["gpasswd", "-M", members, name], check=True)
        yield name
    finally:
        subprocess.run(["groupdel", name], check=True)


@pytest.fixture(scope="module")
def make_crowd(
    reachable_tmp: Path,
    install: Install,
    shared_group: str,
    root_account: Account,
    ordinary_user: Account,
    second_user: Account,
) -> Iterator[Callable[..., Crowd]]:
    """Start daemons that serve all three; they end with the module."""
    with daemon_factory(reachable_tmp, install) as start:

        def make(runner: str = "auto", settings: Settings | None = None) -> Crowd:
            sections: Settings = {"daemon": {"group": shared_group}}
            daemon = start(
                account=root_account,
                caller=ordinary_user,
                runner=runner,
                settings=sections | (settings or {}),
            )
            return Crowd(
                daemon,
                dataclasses.replace(daemon, caller=second_user),
                dataclasses.replace(daemon, caller=root_account),
            )

        yield make


@pytest.fixture(scope="module", params=RUNNERS)
def crowd(request: pytest.FixtureRequest, make_crowd: Callable[..., Crowd]) -> Crowd:
    """The daemon on each runner."""
    return make_crowd(request.param)
