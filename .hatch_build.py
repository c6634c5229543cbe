"""Compiles the keeper when the package is built, for this machine's architecture."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PROGRAM = "bashd/launcher/bashd-keeper"
_FLAGS = (
    # It runs where no library may be readable, and a small process forks fast. Some
    # distributions define the second macro themselves.
    "-static", "-O2", "-s",
    "-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2",
    "-Wall", "-Wextra",
)  # fmt: skip


class CompileKeeper(BuildHookInterface[Any]):
    """Puts the program into the package, which makes the wheel one of this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; *version* is the build's kind."""
        del version
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        compiler = shlex.split(os.environ.get("CC", "cc"))
        sources = sorted(map(str, (root / "bashd" / "launcher").glob("*.c")))
        call = [*compiler, *_FLAGS, "-o", _PROGRAM, *sources]
        try:
            subprocess.run(call, cwd=root, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(
                f"bashd's keeper cannot be compiled ({error}); it needs a C compiler and"
                " a static C library: apt-get install gcc libc6-dev,"
                " dnf install gcc glibc-devel glibc-static"
            )
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(_PROGRAM)
