"""``bashd install`` and ``bashd uninstall``: bashd as a service of systemd's."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import bashd
from bashd.cli.parsing import add_command
from bashd.cli.report import print_text
from bashd.core.errors import HostError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from bashd.cli.installation import Scope, Step
    from bashd.cli.parsing import Subparsers

_DESCRIPTION = """\
Install bashd as a service of systemd's, and say what was done.

--system, as root: one daemon for the machine, which serves every member of the group
bashd as themselves; it starts with the first command.
--user: one daemon for you, under your own systemd.

Files that are there already are replaced; your configuration is not touched.
"""

_EPILOG = """\
examples:
  bashd install --system --dry-run     show what would be done
  sudo bashd install --system && sudo usermod -aG bashd alice
  bashd install --user

exit status:
  0 done, 2 the words make no sense, 125 something failed; the message says what
"""

_UNINSTALL_DESCRIPTION = """\
Stop the service and remove what `bashd install` put in place, the sessions' state and
the group. A configuration in /etc/bashd stays unless --purge is given.
"""

_UNINSTALL_EPILOG = """\
examples:
  bashd uninstall --system --dry-run
  sudo bashd uninstall --system --purge
  bashd uninstall --user

exit status:
  0 done, 2 the words make no sense, 125 something failed; the message says what
"""

# A root daemon looks at its own code when it starts; better to hear of it now.
_CHECK: Final = """
import sys
import bashd.daemon.main
from bashd.core.errors import BashdError
from bashd.daemon.trust import check_own_code
try:
    check_own_code()
except BashdError as error:
    sys.stderr.write(error.message)
    sys.exit(3)
"""
_UNTRUSTED: Final = 3


def add_parser(subparsers: Subparsers) -> None:
    """Add ``install`` and ``uninstall``."""
    install = add_command(
        subparsers,
        "install",
        summary="install bashd as a service",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    _add_scope(install)
    uninstall = add_command(
        subparsers,
        "uninstall",
        summary="remove the service and what belongs to it",
        description=_UNINSTALL_DESCRIPTION,
        epilog=_UNINSTALL_EPILOG,
    )
    _add_scope(uninstall)
    uninstall.add_argument(
        "--purge", action="store_true", help="remove the configuration as well"
    )
    uninstall.add_argument(
        "--keep-state",
        action="store_true",
        help="keep /var/lib/bashd: sessions' records and the audit log",
    )


def _add_scope(parser: argparse.ArgumentParser) -> None:
    scope = parser.add_mutually_exclusive_group(required=True)
    scope.add_argument(
        "--system",
        action="store_const",
        const="system",
        dest="scope",
        help="for the whole machine; needs root",
    )
    scope.add_argument(
        "--user", action="store_const", const="user", dest="scope", help="for yourself"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only show what would be done"
    )


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    from bashd.cli.installation import (  # noqa: PLC0415 - the parser needs none of it
        carry_out,
        plan_install,
        plan_uninstall,
    )

    scope = _scope(args)
    if args.subcommand == "uninstall":
        steps = plan_uninstall(scope, purge=args.purge, keep_state=args.keep_state)
        notes: list[str] = []
    else:
        if scope.name == "system" and os.geteuid() == 0:
            _check_code()
        steps = plan_install(scope, find_program(), units_folder())
        notes = _notes(scope)
    return _show(_previews(steps) if args.dry_run else carry_out(steps), notes)


def find_program() -> list[str]:
    """Return an argv, absolute, that starts this very bashd."""
    script = Path(sys.executable).parent / "bashd"
    if os.access(script, os.X_OK):
        return [str(script)]
    return [sys.executable, "-P", "-m", "bashd"]


def units_folder() -> Path:
    """Return the folder of the shipped units: the wheel's, else the checkout's."""
    package = Path(bashd.__file__).resolve().parent
    packed = package / "share" / "systemd"
    return packed if packed.is_dir() else package.parent / "systemd"


def _scope(args: argparse.Namespace) -> Scope:
    from bashd.cli.installation import system_scope, user_scope  # noqa: PLC0415

    if args.scope == "user":
        uid = os.geteuid()
        return user_scope(os.environ, pwd.getpwuid(uid).pw_dir, uid)
    if os.geteuid() != 0 and not args.dry_run:
        raise HostError(
            f"{args.subcommand} --system needs root; use sudo, or --user for yourself"
        )
    return system_scope()


def _check_code() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHECK],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, _UNTRUSTED):
        raise HostError(f"this installation is broken: {done.stderr.strip()}")
    if done.returncode:
        raise HostError(
            f"{done.stderr.strip()}; a service for everybody must run code that is"
            " root's alone: install bashd below /opt or /usr/local as root"
        )


def _previews(steps: Iterable[Step]) -> Iterable[str]:
    return (f"would {step}" for step in steps)


def _notes(scope: Scope) -> list[str]:
    if scope.name == "user":
        return [] if scope.booted else ["starts with your next login"]
    program = find_program()[0]
    closed = [str(p) for p in Path(program).parents if not p.stat().st_mode & 0o001]
    notes = [f"other users cannot run {program}: {p} is closed to them" for p in closed]
    if not scope.booted:
        notes.append("systemd does not run here: the socket opens with the next boot")
    return [
        *notes,
        "who may use it: members of the group bashd (usermod -aG bashd USER)",
    ]


def _show(lines: Iterable[str], notes: Iterable[str]) -> int:
    for line in lines:
        print_text(f"{line}\n")
    for note in notes:
        print_text(f"note: {note}\n")
    return 0
