"""What `bashd install` and `uninstall` do, as a plan of steps.

A plan is made first and carried out afterwards, so that ``--dry-run`` shows exactly
what would be done. Files go where an administrator's go (/etc, /usr/local), not where
a distribution's package would put its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bashd.cli.manual import config_page, program_page
from bashd.core.errors import HostError
from bashd.core.places import SYSTEM_STATE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

GROUP: Final = "bashd"
SYSTEM_CONFIG: Final = "/etc/bashd"
_SOCKET_FOLDER: Final = "/run/bashd"
_LINK_FOLDER: Final = "/usr/local/bin"
_PROGRAMS: Final = ("bashd", "bashd-sh")
_EVERYBODYS_PATH: Final = ("/usr/local/bin", "/usr/bin", "/bin")
_UNITS: Final = ("bashd.socket", "bashd.service")
_TOOL_S: Final = 90
"""systemd's own bound for a stop (DefaultTimeoutStopSec=)."""
_MANAGER: Final = {
    # Where a running service manager leaves a trace. Source: sd_booted(3).
    "system": "/run/systemd/system",
    "user": "{runtime}/systemd/private",
}


@dataclass(frozen=True, slots=True)
class Write:
    """Put a file in place; one that says the same already is left alone."""

    path: str
    text: str

    def __str__(self) -> str:
        """Say what it does."""
        return f"write {self.path}"

    def do(self) -> str:
        """Do it; returns what was done."""
        path = Path(self.path)
        if path.is_file() and path.read_text(errors="replace") == self.text:
            return f"unchanged {self.path}"
        done = "replaced" if path.exists() else "wrote"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: systemd may look at any moment.
        draft = path.with_name(f".{path.name}.new")
        draft.write_text(self.text)
        draft.chmod(0o644)
        draft.replace(path)
        return f"{done} {self.path}"


@dataclass(frozen=True, slots=True)
class Link:
    """Make the program one that everybody's PATH finds."""

    path: str
    target: str

    def __str__(self) -> str:
        """Say what it does."""
        return f"link {self.path} to {self.target}"

    def do(self) -> str:
        """Do it; returns what was done."""
        path = Path(self.path)
        if path.is_symlink() and path.readlink() == Path(self.target):
            return f"unchanged {self.path}"
        if path.exists() and not path.is_symlink():
            return f"kept {self.path}: a file that is not ours"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(self.target)
        return f"linked {self.path} to {self.target}"


@dataclass(frozen=True, slots=True)
class Run:
    """Run one of systemd's tools."""

    argv: tuple[str, ...]
    needed: bool = True
    """Whether its failure ends the plan."""

    def __str__(self) -> str:
        """Say what it does."""
        return f"run {' '.join(self.argv)}"

    def do(self) -> str:
        """Do it; returns what was done.

        Raises:
            HostError: It failed, and everything after it needs it.
        """
        try:
            done = subprocess.run(
                self.argv, capture_output=True, text=True, check=False, timeout=_TOOL_S
            )
            said = (done.stderr or done.stdout).strip()
            failed = done.returncode != 0
        except (OSError, subprocess.TimeoutExpired) as error:
            said, failed = str(error), True
        if not failed:
            return f"ran {' '.join(self.argv)}"
        if self.needed:
            raise HostError(f"{' '.join(self.argv)} failed: {said}")
        return f"tried {' '.join(self.argv)}: {said}"


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a file, a link or a whole folder; nothing happens where none is."""

    path: str
    tree: bool = False
    """False: a folder goes only if it is empty."""
    shared: bool = False
    """Others may have something in it, and that is no news."""

    def __str__(self) -> str:
        """Say what it does."""
        return f"remove {self.path}{' and what is in it' if self.tree else ''}"

    def do(self) -> str:
        """Do it; returns what was done, "" for nothing."""
        path = Path(self.path)
        if path.is_dir() and not path.is_symlink():
            return self._remove_folder(path)
        if not os.path.lexists(path):
            return ""
        path.unlink()
        return f"removed {self.path}"

    def _remove_folder(self, path: Path) -> str:
        if self.tree:
            # rm takes trees of any depth, and follows no link.
            done = subprocess.run(
                ["rm", "-rf", "--one-file-system", "--", self.path],  # noqa: S607
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise HostError(f"cannot remove {path}: {done.stderr.strip()}")
            return f"removed {self.path}"
        try:
            path.rmdir()
        except OSError:
            return "" if self.shared else f"kept {self.path}: not empty"
        return f"removed {self.path}"


Step = Write | Link | Run | Remove


@dataclass(frozen=True, slots=True)
class Scope:
    """For whom bashd is installed, and where their files go."""

    name: str
    """"system" or "user"."""
    units: str
    manuals: str
    runtime: str
    """The runtime folder; its systemd, if one runs, shows there."""

    @property
    def systemctl(self) -> tuple[str, ...]:
        """The start of a command to this scope's systemd."""
        return ("systemctl", "--user") if self.name == "user" else ("systemctl",)

    @property
    def booted(self) -> bool:
        """Whether this scope's systemd runs."""
        return Path(_MANAGER[self.name].format(runtime=self.runtime)).exists()


def system_scope() -> Scope:
    """Everybody on this machine."""
    return Scope("system", "/etc/systemd/system", "/usr/local/share/man", "/run")


def user_scope(environ: Mapping[str, str], home: str, uid: int) -> Scope:
    """One user, under that user's own systemd."""
    config = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    data = environ.get("XDG_DATA_HOME") or f"{home}/.local/share"
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    return Scope("user", f"{config}/systemd/user", f"{data}/man", runtime)


def plan_install(scope: Scope, program: Sequence[str], share: Path) -> list[Step]:
    """Return the steps that install bashd.

    Args:
        scope: For whom.
        program: Absolute path of bashd, or an argv that starts it.
        share: Folder of the unit files as they are shipped.
    """
    steps: list[Step] = [
        Write(path, text) for path, text in _files(scope, program, share).items()
    ]
    if scope.name == "system":
        steps += [
            Run(("systemd-sysusers", "/etc/sysusers.d/bashd.conf")),
            Run(("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/bashd.conf")),
        ]
        steps += _links(program)
    if not scope.booted:
        # Works without a running systemd: in an image, or before the first login.
        return [*steps, Run((*scope.systemctl, "enable", "bashd.socket"))]
    return [
        *steps,
        Run((*scope.systemctl, "daemon-reload")),
        Run((*scope.systemctl, "enable", "--now", "bashd.socket")),
    ]


def plan_uninstall(scope: Scope, *, purge: bool, keep_state: bool) -> list[Step]:
    """Return the steps that leave nothing of an installation.

    Args:
        scope: For whom.
        purge: Also the administrator's (or user's) own configuration.
        keep_state: Not the sessions' records and the audit log.
    """
    ctl = scope.systemctl
    steps: list[Step] = (
        [
            Run((*ctl, "disable", "--now", *_UNITS), needed=False),
            # Failed units are remembered by name, files or not.
            Run((*ctl, "reset-failed", *_UNITS), needed=False),
        ]
        if scope.booted
        else [Run((*ctl, "disable", *_UNITS), needed=False)]
    )
    steps += [Remove(path) for path in _targets(scope)]
    steps += [Remove(folder, shared=True) for folder in _folders(scope)]
    if scope.booted:
        steps.append(Run((*ctl, "daemon-reload")))
    if scope.name == "user":
        return steps
    links = [Path(_LINK_FOLDER, name) for name in _PROGRAMS]
    steps += [Remove(str(link)) for link in links if _is_our_link(link)]
    steps.append(Remove(_SOCKET_FOLDER, tree=True))
    if not keep_state:
        steps.append(Remove(SYSTEM_STATE, tree=True))
    if purge:
        steps.append(Remove(SYSTEM_CONFIG, tree=True))
    else:
        steps += [Remove(f"{SYSTEM_CONFIG}/policies"), Remove(SYSTEM_CONFIG)]
    steps.append(Run(("groupdel", GROUP), needed=False))
    return steps


def carry_out(steps: Sequence[Step]) -> Iterator[str]:
    """Do *steps* in order; yields what was done by each.

    Raises:
        HostError: One of them failed; those before it are done.
    """
    for step in steps:
        try:
            said = step.do()
        except OSError as error:
            raise HostError(f"cannot {step}: {error.strerror}") from error
        if said:
            yield said


def _targets(scope: Scope) -> list[str]:
    paths = [f"{scope.units}/{unit}" for unit in _UNITS]
    if scope.name == "system":
        paths += ["/etc/sysusers.d/bashd.conf", "/etc/tmpfiles.d/bashd.conf"]
    return [
        *paths,
        f"{scope.manuals}/man1/bashd.1",
        f"{scope.manuals}/man5/bashd.toml.5",
    ]


def _folders(scope: Scope) -> list[str]:
    """Return folders that an installation makes where they are missing.

    Only those that a fresh system has not: an empty one of them was ours.
    """
    manuals = [f"{scope.manuals}/man1", f"{scope.manuals}/man5"]
    if scope.name == "system":
        return [*manuals, "/etc/sysusers.d"]
    return [*manuals, scope.manuals, scope.units]


def _files(scope: Scope, program: Sequence[str], share: Path) -> dict[str, str]:
    folder = share / "user" if scope.name == "user" else share
    sources = [folder / unit for unit in _UNITS]
    if scope.name == "system":
        sources += [share / "sysusers.d/bashd.conf", share / "tmpfiles.d/bashd.conf"]
    line = " ".join(_unit_word(word) for word in program)
    texts = [
        source.read_text().replace("@bashd@ serve", line + " serve")
        for source in sources
    ]
    return dict(
        zip(_targets(scope), [*texts, program_page(), config_page()], strict=True)
    )


def _unit_word(word: str) -> str:
    """Quote one word of an Exec line. Source: systemd.service(5), COMMAND LINES."""
    text = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    if any(letter in text for letter in " \t\"';"):
        return '"' + text.replace('"', '\\"') + '"'
    return text


def _links(program: Sequence[str]) -> list[Link]:
    """Return what makes everybody's PATH find the programs, where it does not yet."""
    if len(program) != 1:
        return []
    links: list[Link] = []
    for name in _PROGRAMS:
        link, target = f"{_LINK_FOLDER}/{name}", str(Path(program[0]).with_name(name))
        found = shutil.which(name, path=":".join(_EVERYBODYS_PATH))
        if found in (None, link) and target != link and os.access(target, os.X_OK):
            links.append(Link(link, target))
    return links


def _is_our_link(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.readlink().name == path.name
    return False
