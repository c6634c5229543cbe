"""Which bashd.toml counts, and reading it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bashd.core.config import Config, parse_config
from bashd.core.errors import ConfigError
from bashd.daemon.policies import SYSTEM_DIR
from bashd.daemon.policy_files import read_text

FILE_NAME: Final = "bashd.toml"


def config_path(explicit: str | None, *, root: bool, config_home: str) -> str:
    """Return the path of the configuration file; it need not exist.

    Args:
        explicit: ``--config``.
        root: Whether the daemon runs as root.
        config_home: ``$XDG_CONFIG_HOME``, or ``~/.config``.
    """
    if explicit is not None:
        return explicit
    folder = Path(SYSTEM_DIR) if root else Path(config_home) / "bashd"
    return str(folder / FILE_NAME)


def load_config(explicit: str | None, *, root: bool, config_home: str) -> Config:
    """Read the configuration; built-in defaults where there is no file.

    Args:
        explicit: ``--config``; a file the caller names must exist.
        root: Whether the daemon runs as root.
        config_home: ``$XDG_CONFIG_HOME``, or ``~/.config``.

    Raises:
        ConfigError: It cannot be read, or is wrong; names file, key and fix.
    """
    path = config_path(explicit, root=root, config_home=config_home)
    text = read_text(path)
    if text is None:
        if explicit is not None:
            raise ConfigError(f"{path}: no such file; check --config")
        return Config()
    return parse_config(text, path)
