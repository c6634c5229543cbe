"""One job of GitLab's custom executor: its variables, its folder, how it may end.

The runner calls a program four times for a job (config, prepare, run for each script,
cleanup) with the job's variables as ``CUSTOM_ENV_*`` and exit codes of its choosing.
All that the four share is on disk, in a folder that only the runner's account can read.

Source: docs.gitlab.com/runner/executors/custom.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bashd.core.errors import HostError, InvalidParamsError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX: Final = "CUSTOM_ENV_"
_ID_PARTS: Final = ("CI_SERVER_HOST", "CI_RUNNER_ID", "CI_JOB_ID")
_SAFE: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")

# What GitLab's runner sets them to, for a call by hand.
_BUILD_FAILURE: Final = 1
_SYSTEM_FAILURE: Final = 2


class GitlabJob:
    """What the runner says about a job.

    Args:
        environ: As the runner set it.
        base: Folder that holds those of all jobs; None is below the state folder.
    """

    def __init__(self, environ: Mapping[str, str], base: str | None = None) -> None:
        self._environ = environ
        self.variables = {
            name.removeprefix(_PREFIX): value
            for name, value in environ.items()
            if name.startswith(_PREFIX)
        }
        """The job's own."""
        self.folder = Path(base or _default_base(environ)) / self._name()
        """Gone once the job has been cleaned up."""

    def _name(self) -> str:
        if not self.variables.get("CI_JOB_ID"):
            raise InvalidParamsError(
                "CUSTOM_ENV_CI_JOB_ID is not set; this command is for GitLab's runner"
                " to call, see its executor `custom`"
            )
        parts = [self.variables.get(name) or "0" for name in _ID_PARTS]
        for name, part in zip(_ID_PARTS, parts, strict=True):
            if not _SAFE.fullmatch(part):
                raise InvalidParamsError(f"CUSTOM_ENV_{name} is no name: {part!r}")
        return "_".join(parts)

    @property
    def work(self) -> Path:
        """What the job may write to: its workspace."""
        return self.folder / "work"

    @property
    def builds(self) -> Path:
        """The runner's ``builds_dir``."""
        return self.work / "builds"

    @property
    def cache(self) -> Path:
        """The runner's ``cache_dir``."""
        return self.work / "cache"

    @property
    def build_failure(self) -> int:
        """Exit code for what is the job's own fault."""
        return _code(self._environ, "BUILD_FAILURE_EXIT_CODE", _BUILD_FAILURE)

    @property
    def timeout_ms(self) -> int | None:
        """The job's time by GitLab, which is stricter than the policy's or of no use."""
        text = self.variables.get("CI_JOB_TIMEOUT", "")
        return int(text) * 1000 if text.isdecimal() and int(text) else None

    def report_exit(self, status: int) -> None:
        """Tell the runner the true exit code of a failed script, where it asks for it."""
        path = self._environ.get("BUILD_EXIT_CODE_FILE")
        if path:
            Path(path).write_text(f"{status}\n")

    def environment(self) -> dict[str, str | None]:
        """Return what the job's commands get on purpose: its own variables."""
        return {
            name: value
            for name, value in self.variables.items()
            if not name.upper().startswith("BASHD_")
        }

    def ambient(self) -> dict[str, str]:
        """Return what of the runner's environment is none of its secrets."""
        plain = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ")
        return {
            name: value
            for name, value in self._environ.items()
            if name in plain or name.startswith("LC_")
        }

    # --- on disk -----------------------------------------------------------------------

    def make(self) -> None:
        """Make the job's folder; what an earlier try left there goes first."""
        self.remove()
        try:
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in (self.folder, self.work, self.builds, self.cache):
                path.mkdir(mode=0o700)
        except OSError as error:
            raise HostError(f"cannot make {error.filename}: {error.strerror}") from None

    @property
    def session(self) -> str | None:
        """Id of the job's session; None when it has none."""
        with contextlib.suppress(OSError):
            return (self.folder / "session").read_text().strip() or None
        return None

    def keep_session(self, session_id: str) -> None:
        """Write down the job's session, for the calls to come."""
        (self.folder / "session").write_text(session_id)

    def remove(self) -> None:
        """Remove all of the job's files, however deep and whatever their modes.

        Raises:
            HostError: Something is left.
        """
        if not os.path.lexists(self.folder):
            return
        # rm and chmod walk by descriptors: no depth is too deep, no link is followed.
        for argv in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            if not os.path.lexists(self.folder):
                return
            subprocess.run(
                [*argv, "--", str(self.folder)], capture_output=True, check=False
            )
        if os.path.lexists(self.folder):
            raise HostError(f"cannot remove {self.folder}; remove it by hand")


def _default_base(environ: Mapping[str, str]) -> str:
    state = environ.get("XDG_STATE_HOME", "")
    base = state if state.startswith("/") else f"{Path.home()}/.local/state"
    return f"{base}/bashd-gitlab"


def system_failure(environ: Mapping[str, str]) -> int:
    """Return the exit code for what is our fault; the runner may try the job again."""
    return _code(environ, "SYSTEM_FAILURE_EXIT_CODE", _SYSTEM_FAILURE)


def _code(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else default
