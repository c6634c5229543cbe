"""Checks the units with systemd's own tools; also a program, for the lint command."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.stage import REPOSITORY

UNITS = REPOSITORY / "systemd"


def render(folder: Path, program: str = "/bin/true") -> list[Path]:
    """Copy the units to *folder* as an installation would, and return their paths.

    Args:
        folder: Gets the subfolders ``system`` and ``user``.
        program: What stands for ``@bashd@``; systemd-analyze wants it executable.
    """
    rendered: list[Path] = []
    for scope, source in (("system", UNITS), ("user", UNITS / "user")):
        (folder / scope).mkdir()
        for unit in sorted((*source.glob("*.service"), *source.glob("*.socket"))):
            target = folder / scope / unit.name
            target.write_text(unit.read_text().replace("@bashd@", program))
            rendered.append(target)
    return rendered


def verify(scope: str, units: list[Path]) -> str:
    """Return what ``systemd-analyze verify`` has to say against *units*."""
    mode = ["--user"] if scope == "user" else []
    done = subprocess.run(
        # --man=no: the manual pages are installed with the program.
        ["systemd-analyze", *mode, "verify", "--man=no", *units],
        # A user's systemd has a runtime folder; %t stands for it.
        env=os.environ | {"XDG_RUNTIME_DIR": str(units[0].parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = done.stdout + done.stderr
    if done.returncode and not complaints:
        return f"systemd-analyze verify: exit status {done.returncode}"
    # It loads the machine's own units along with ours, and may find fault with those.
    lines = [line for line in complaints.splitlines() if not is_expected(line)]
    failed = done.returncode and lines
    return "\n".join(line for line in lines if failed or "bashd" in line)


def is_expected(complaint: str) -> bool:
    """Whether a complaint is about a line that old versions of systemd ignore."""
    return "Unknown key" in complaint and "DelegateSubgroup" in complaint


def main() -> int:
    """Print every complaint; return 1 if there is one."""
    with tempfile.TemporaryDirectory() as name:
        units = render(Path(name))
        by_scope = {
            scope: [unit for unit in units if unit.parent.name == scope]
            for scope in ("system", "user")
        }
        complaints = "".join(verify(scope, own) for scope, own in by_scope.items())
    print(complaints or f"units: {len(units)} verified")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
