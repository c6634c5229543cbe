"""An sshd, and a daemon behind it, for all tests of this folder."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from tests.conftest import daemon_factory
from tests.remote.sshd import SshServer, find_sshd, start_sshd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.accounts import Account
    from tests.support.stage import Install


@pytest.fixture(scope="module")
def server(
    reachable_tmp: Path,
    install: Install,
    ordinary_user: Account,
    bwrap_for_users: None,
) -> Iterator[SshServer]:
    if find_sshd() is None:
        pytest.skip("no sshd here (apt: openssh-server)")
    with daemon_factory(reachable_tmp, install) as make:
        daemon = make(account=ordinary_user)
        running = start_sshd(reachable_tmp / f"ssh-{secrets.token_hex(4)}", daemon)
        try:
            yield running
        finally:
            running.stop()
