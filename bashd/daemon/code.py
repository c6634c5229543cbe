"""The launcher's code, copied once to a folder that cells can be given.

A cell's first process is a bare interpreter (``-I -S``) and a copy of exactly what it
imports: `bashd.launcher`, ``landlock`` and ``prctl``. The program that it executes in
turn, the keeper, it gets as a descriptor. The copy lies in the state folder,
named by its content, so bashd may be installed in a home folder, under /tmp or inside
the workspace: no command can rewrite the next launcher, and no virtual environment has
to be visible in a cell.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import py_compile
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Final

from bashd.core.errors import HostError
from bashd.daemon.memfd import sealed_program

_KEEPER: Final = Path(__file__).resolve().parents[1] / "launcher" / "bashd-keeper"
"""Compiled when the package is built."""
_LEAN: Final = {
    "lean_landlock.py": "landlock/__init__.py",
    "lean_platform.py": "platform.py",
    "lean_typing.py": "typing.py",
}
"""Files of the launcher that stand for modules of others in its copy: half of a cell's
start was the import of what it never calls."""
LOADER = (
    "import sys;sys.path.insert(0,sys.argv[1]);"
    "from launcher import keeper;keeper.main(int(sys.argv[2]))"
)
"""Start of a cell: argv[1] is the folder, argv[2] the control socket."""


def interpreter() -> str:
    """Return the base interpreter's canonical path; a venv's own may be hidden."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return os.path.realpath(base)


@functools.cache
def code_paths() -> tuple[str, ...]:
    """Return what must stay visible and unwritable: interpreter and all of our code."""
    own = Path(__file__).resolve().parents[1]
    stdlib = os.path.realpath(sysconfig.get_path("stdlib"))
    paths = {interpreter(), stdlib, str(own)}
    if sys.prefix != sys.base_prefix:
        paths.add(os.path.realpath(sys.prefix))
    library = sysconfig.get_config_var("LDLIBRARY")
    folder = sysconfig.get_config_var("LIBDIR")
    if library and folder and ".so" in library:
        candidate = os.path.realpath(Path(folder) / library)
        if Path(candidate).exists():
            paths.add(candidate)
    # A folder that is inside another one of these needs no mount of its own.
    return tuple(
        sorted(p for p in paths if not any(p.startswith(q + "/") for q in paths))
    )


def install(lib_root: Path) -> Path:
    """Copy the launcher's closure below *lib_root* unless it is there; return it.

    Raises:
        HostError: A package the launcher needs is not installed.
    """
    sources = _sources()
    digest = hashlib.sha256(sys.version.encode())
    for name, source in sources:
        digest.update(name.encode() + b"\0" + source.read_bytes())
    target = lib_root / digest.hexdigest()[:16]
    if target.is_dir():
        return target
    lib_root.mkdir(parents=True, exist_ok=True)
    lib_root.chmod(0o755)
    staging = lib_root / f".{target.name}.{os.getpid()}"
    for name, source in sources:
        copy = staging / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        copy.chmod(0o644)
        if copy.suffix == ".py":
            # Cells may not write a cache; compiling there would cost each cold start.
            py_compile.compile(
                str(copy),
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
    for folder, _, files in os.walk(staging):
        Path(folder).chmod(0o755)
        for file in files:
            (Path(folder) / file).chmod(0o644)
    try:
        staging.rename(target)
    except OSError:
        # Another daemon of this user was faster; its copy has the same content.
        shutil.rmtree(staging)
    return target


def _sources() -> list[tuple[str, Path]]:
    own = Path(__file__).resolve().parents[1] / "launcher"
    parts = [path for path in sorted(own.glob("*.py")) if path.name not in _LEAN]
    found = [(f"launcher/{path.name}", path) for path in parts]
    found += [(place, own / name) for name, place in _LEAN.items()]
    found.append(("landlock/plumbing.py", _origin("landlock").with_name("plumbing.py")))
    for module in ("prctl", "_prctl"):
        path = _origin(module)
        found.append((path.name, path))
    return found


def _origin(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise HostError(
            f"the Python package {module!r} is missing; install bashd's dependencies"
            " (pip install landlock python-prctl)"
        )
    return Path(spec.origin)


@functools.cache
def keeper_fd() -> int:
    """Return a descriptor of the program that keeper, zygote and spares are.

    Raises:
        HostError: It is not installed, or this machine would not run it.
    """
    try:
        program = _KEEPER.read_bytes()
    except OSError as error:
        raise HostError(
            f"{_KEEPER}: {error.strerror}; it is compiled when bashd is installed:"
            " install a C compiler (apt-get install gcc libc6-dev) and bashd again"
        ) from error
    try:
        return sealed_program("bashd-keeper", program)
    except OSError as error:
        raise HostError(
            f"no program may be run from memory here ({error.strerror});"
            " allow it: sysctl vm.memfd_noexec=1"
        ) from error
