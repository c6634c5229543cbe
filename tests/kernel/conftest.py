"""Fixtures of the tests that ask a real kernel."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def policy_folder(reachable_tmp: Path) -> Callable[..., dict[str, str]]:
    """``policy_folder(name=text)``: the environment of a user with these policies."""

    def make(**policies: str) -> dict[str, str]:
        config = reachable_tmp / f"config-{secrets.token_hex(4)}"
        folder = config / "bashd" / "policies"
        folder.mkdir(parents=True)
        for path in (config, config / "bashd", folder):
            path.chmod(0o755)
        for name, text in policies.items():
            (folder / f"{name}.toml").write_text(text)
            (folder / f"{name}.toml").chmod(0o644)
        return {"XDG_CONFIG_HOME": str(config)}

    return make
