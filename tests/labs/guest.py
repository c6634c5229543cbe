"""A guest with a kernel of its own, emulated: old kernels and what they cannot do.

A root from debootstrap with the distribution's kernel gets bashd installed as its
service and is packed into an image. It boots under QEMU without hardware support,
which every machine can do, runs `tests.labs.in_guest`, and powers off. The image is
only read.

The root file system is entered with chroot for the installation, in mount and pid
namespaces that go with it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.labs import roots
from tests.labs.roots import Release
from tests.labs.stranger import settings
from tests.support.stage import REPOSITORY

_NEEDS: Final = (
    *("bubblewrap", "libseccomp2", "gcc", "libc6-dev", "libcap-dev", "python3-dev"),
    *("python3-venv", "initramfs-tools", "udev", "kmod", "procps"),
)
_TOOLS: Final = ("qemu-system-x86_64", "mke2fs")
_IMAGE_BYTES: Final = 4 << 30
_INSTALL_S: Final = 900
_RUN_S: Final = 1200
_SHARE: Final = "/opt/bashd"

_UNIT: Final = f"""\
[Unit]
Wants=bashd.socket
After=multi-user.target bashd.socket
[Service]
Type=oneshot
WorkingDirectory={_SHARE}
ExecStart={_SHARE}/.venv/bin/python -m tests.labs.in_guest
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
ExecStopPost=/usr/bin/systemctl --force --force poweroff
"""
_PATIENCE: Final = """\
[Service]
TimeoutStartSec=600
WatchdogSec=0
"""
# $1: the root; the checkout is in it already
_INSTALL: Final = f"""
set -eu
root=$1; shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
exec chroot "$root" env "$@" sh -eu <<'INSIDE'
cd {_SHARE}
./dev shell </dev/null
useradd -m -s /bin/bash alice
.venv/bin/bashd install --system
usermod -aG bashd alice
for unit in serial-getty@ttyS0 getty@tty1 apt-daily.timer apt-daily-upgrade.timer \\
    systemd-networkd e2scrub_all.timer fstrim.timer systemd-timesyncd; do
    systemctl mask -q $unit
done
INSIDE
"""


@dataclass(frozen=True, slots=True)
class Guest:
    """What boots."""

    image: Path
    kernel: Path
    initrd: Path

    def run(self, *append: str) -> dict[str, Any]:
        """Boot it and return the facts that were found, by name.

        Args:
            append: More words for the kernel's command line.
        """
        line = self.image.with_suffix(".facts")
        console = self.image.with_suffix(".console")
        line.unlink(missing_ok=True)  # what an earlier boot said
        words = [
            *("root=/dev/vda", "rw", "console=ttyS0", "systemd.show_status=0", "quiet"),
            # A minute of a real machine's is many here.
            *("systemd.default_timeout_start_sec=600", "nowatchdog", *append),
            "systemd.wants=bashd-lab.service",
        ]
        argv = [
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max"),
            *("-smp", "2", "-m", "2048", "-nodefaults", "-display", "none"),
            *("-no-reboot", "-kernel", str(self.kernel), "-initrd", str(self.initrd)),
            *("-append", " ".join(words)),
            *("-serial", f"file:{console}", "-serial", f"file:{line}"),
            "-drive",
            f"file={self.image},format=raw,if=virtio,snapshot=on",
        ]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_RUN_S, check=False
        )
        said = line.read_text() if line.exists() else ""
        facts = [json.loads(entry) for entry in said.splitlines() if entry]
        found = {fact["name"]: fact["found"] for fact in facts}
        ending = console.read_text(errors="replace")[-3000:]
        assert "end" in found, f"{done.stderr}{found}{ending}"
        return found


def why_not(release: Release) -> str | None:
    """Return why no guest can be made and run here; None if one can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"an emulated guest needs {', '.join(missing)}"
    return roots.why_not(release)


def make_guest(release: Release, folder: Path) -> Guest:
    """Return a guest of *release* with bashd as its service; made in *folder*."""
    place = folder / f"{release.name}-guest"
    place.mkdir(exist_ok=True)
    base = roots.make_root(release, folder, (release.kernel, *_NEEDS))
    # The image has today's checkout; the root below it may be kept from another day.
    root = place / "root"
    subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(root)], check=True)
    try:
        _install(root)
        (kernel,) = (root / "boot").glob("vmlinuz-*")
        (initrd,) = (root / "boot").glob("initrd.img-*")
        guest = Guest(
            place / "image",
            Path(shutil.copy(kernel, place / "kernel")),
            Path(shutil.copy(initrd, place / "initrd")),
        )
        _pack(root, guest.image)
    finally:
        shutil.rmtree(root)
    return guest


def _install(root: Path) -> None:
    share = root / _SHARE[1:]
    ignored = shutil.ignore_patterns(
        ".venv", ".git", "__pycache__", ".*_cache", ".hypothesis"
    )
    shutil.copytree(REPOSITORY, share, symlinks=True, ignore=ignored)
    unit = root / "etc/systemd/system/bashd-lab.service"
    unit.write_text(_UNIT)
    patience = unit.with_name("bashd.service.d") / "emulated.conf"
    patience.parent.mkdir()
    patience.write_text(_PATIENCE)
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.is_file():
        shutil.copy(certificates, root / str(certificates)[1:])
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    apart = ["unshare", "--mount", "--pid", "--fork", "--"]
    done = subprocess.run(
        [*apart, "sh", "-c", _INSTALL, "sh", str(root), *settings()],
        env={"PATH": os.defpath + ":/usr/sbin:/sbin", "HOME": "/root"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def _pack(root: Path, image: Path) -> None:
    image.unlink(missing_ok=True)
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    argv = ["mke2fs", "-q", "-t", "ext4", "-d", str(root), str(image)]
    subprocess.run(argv, check=True, capture_output=True, timeout=_INSTALL_S)
