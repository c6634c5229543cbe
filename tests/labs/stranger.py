"""A booted machine with nothing of ours on it but a copy of this checkout.

It has the host's network, for apt and pip, which is all that it shares with it: what
is written there goes with it.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.stage import REPOSITORY

if TYPE_CHECKING:
    from tests.systemd.machine import Machine

CHECKOUT: Final = "/opt/bashd"
"""Where only root can write, as the README asks for."""
BASHD: Final = f"{CHECKOUT}/.venv/bin/bashd"
_NOT_COPIED: Final = (".venv", ".git", "__pycache__", ".*_cache", ".hypothesis")
_CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
_COPY_S: Final = 120


@dataclass(frozen=True, slots=True)
class Stranger:
    """Someone at the terminal of a fresh machine."""

    machine: Machine

    def bring(self, place: str = CHECKOUT) -> None:
        """Copy this checkout to *place*, as root's."""
        excluded = [f"--exclude={name}" for name in _NOT_COPIED]
        pack = ["tar", "-C", str(REPOSITORY), *excluded, "-c", "."]
        self.machine.check("mkdir", "-p", place)
        unpack = self.machine.argv("tar", "-C", place, "--no-same-owner", "-x")
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as packed:
            subprocess.run(unpack, stdin=packed.stdout, check=True, timeout=_COPY_S)

    def meet_the_network(self) -> None:
        """Give it the host's certificates, where those are of the host's own kind."""
        bundle = Path(_CERTIFICATES)
        if bundle.is_file():
            done = self.machine.run("tee", _CERTIFICATES, stdin=bundle.read_text())
            assert done.returncode == 0, done.stderr

    def root(self, script: str, timeout_s: float = 900) -> str:
        """Type *script* as root; it must succeed. Returns what is shown."""
        lines = f"cd {CHECKOUT}; exec 2>&1; {script}"
        words = ["env", *settings(), "bash", "-euc", lines]
        return self.machine.check(*words, timeout_s=timeout_s)

    def login(self, user: str, command: str) -> tuple[int, str]:
        """Type *command* in a login shell of *user*; returns status and output."""
        done = self.machine.run("su", "-", user, "-c", f"{{ {command}; }} 2>&1")
        return done.returncode, done.stdout

    def processes(self, user: str) -> list[str]:
        """Return the names of a user's processes; no tool for that is in every root."""
        return self.machine.shell(
            f"""for place in /proc/[0-9]*; do
                [ "$(stat -c %U "$place" 2>/dev/null)" != {user} ] ||
                    cat "$place/comm" || true
            done"""
        ).splitlines()

    def files(self) -> set[str]:
        """Return every file of the machine but kernel's, logs and the checkout."""
        return set(self.machine.shell(_FILES).splitlines())


_FILES: Final = f"""
find / \\( -path /proc -o -path /sys -o -path /dev -o -path {CHECKOUT} \
  -o -path /tmp -o -path /var/log -o -path /var/tmp -o -path /run/systemd \
  -o -path /run/user -o -path /run/log -o -path /root/.cache -o -path /run/udev \
  -o -path /run/dbus -o -path /var/lib/systemd -o -path /run/host \\) \
  -prune -o -print
"""


def settings() -> list[str]:
    """Return what a machine beside this one needs to reach the same package index."""
    names = ("PIP_CERT", "PIP_INDEX_URL", "http_proxy", "https_proxy", "no_proxy")
    given = {name: os.environ[name] for name in names if name in os.environ}
    return [f"{name}={value}" for name, value in given.items()]
