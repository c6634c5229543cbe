"""Root file systems fresh from debootstrap, as the machine of a stranger has them.

They hold what every installation of the release has and python3, nothing of ours.
Made once for a run; ``BASHD_LABS=FOLDER`` keeps them for the next one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

UNSIGNED: Final = "BASHD_LABS_UNSIGNED"
"""Environment variable: 1 takes packages whose signature nothing here can check."""
_BUILD_S: Final = 1200
_HAVE: Final = (
    # What every installed system boots with and logs in by, and what the README asks
    # for: python3. ca-certificates, so that pip can reach its index.
    *("systemd-sysv", "dbus", "libpam-systemd", "passwd", "python3"),
    "ca-certificates",
)


@dataclass(frozen=True, slots=True)
class Release:
    """A release of a distribution that debootstrap can make."""

    name: str
    suite: str
    kernel: str
    """Package of its kernel for virtual machines."""
    keyring: str
    script: str = ""
    """debootstrap's, where the suite is newer than debootstrap; all of Ubuntu's are
    one."""
    components: str = "main"


DEBIAN_12: Final = Release(
    "debian12",
    "bookworm",
    "linux-image-cloud-amd64",
    "/usr/share/keyrings/debian-archive-keyring.gpg",
)
UBUNTU_2404: Final = Release(
    "ubuntu2404",
    "noble",
    "linux-image-virtual",
    "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
    "gutsy",
    "main,universe",
)


def why_not(release: Release) -> str | None:
    """Return why no root of that release can be made here; None if one can."""
    if os.geteuid() != 0:
        return "debootstrap needs root"
    if shutil.which("debootstrap") is None:
        return "needs debootstrap"
    if not Path(release.keyring).exists() and not _unsigned():
        return f"needs {release.keyring}, or {UNSIGNED}=1 to trust without it"
    return None


def _unsigned() -> bool:
    return os.environ.get(UNSIGNED) == "1"


def make_root(release: Release, folder: Path, more: tuple[str, ...] = ()) -> Path:
    """Return a root of *release* below *folder*; one that is there is taken.

    Args:
        release: What to make.
        folder: For roots; nothing else is in it.
        more: Packages besides those that every root has.
    """
    root = folder / "-".join((release.name, *more[:1]))
    if root.is_dir():
        return root
    draft = root.with_suffix(".new")
    shutil.rmtree(draft, ignore_errors=True)
    options = [
        *("--variant=minbase", f"--include={','.join((*_HAVE, *more))}"),
        f"--components={release.components}",
    ]
    if not Path(release.keyring).exists():
        options.append("--no-check-gpg")
    # No mirror: debootstrap's own for the distribution.
    _run("debootstrap", *options, release.suite, str(draft), "", release.script)
    draft.rename(root)
    return root


def _run(*argv: str) -> None:
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_BUILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
