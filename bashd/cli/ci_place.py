"""Which folder is a CI job's own, and which job it is, by what its runner says.

A runner's variable counts only while the current folder lies in the folder it names: a
step that works somewhere else is confined to where it works.
"""

from __future__ import annotations

import os

from bashd.client.folder import absolute

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

FOLDERS: Final = (
    "GITHUB_WORKSPACE",
    "CI_PROJECT_DIR",
    "BUILDKITE_BUILD_CHECKOUT_PATH",
    "WORKSPACE",
    "BUILD_SOURCESDIRECTORY",
    "CIRCLE_WORKING_DIRECTORY",
    "CI_WORKSPACE",
    "DRONE_WORKSPACE",
    "TRAVIS_BUILD_DIR",
    "BITBUCKET_CLONE_DIR",
)
"""GitHub and Gitea, GitLab, Buildkite, Jenkins, Azure, CircleCI, Woodpecker, Drone,
Travis, Bitbucket; the folder that each checks the source out into."""

JOBS: Final = (
    ("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_JOB", "RUNNER_NAME"),
    ("CI_JOB_ID",),
    ("BUILDKITE_JOB_ID",),
    ("BUILD_TAG",),
    ("BUILD_BUILDID", "SYSTEM_JOBID"),
    ("CIRCLE_WORKFLOW_JOB_ID",),
    ("TRAVIS_JOB_ID",),
)
"""Variables that together tell one job from all others; the first decides."""


def workspace(environ: Mapping[str, str]) -> str:
    """Return the folder that a job may write to: ``BASHD_WORKSPACE``, its runner's, cwd."""
    named = environ.get("BASHD_WORKSPACE")
    if named:
        return absolute(named)
    here = os.path.realpath(absolute())
    for name in FOLDERS:
        folder = environ.get(name, "")
        if folder.startswith("/") and _is_below(here, os.path.realpath(folder)):
            return folder
    return here


def job(environ: Mapping[str, str]) -> str | None:
    """Return a name for the job, the same in each of its steps; None outside of CI."""
    named = environ.get("BASHD_JOB")
    if named:
        return named
    for names in JOBS:
        if environ.get(names[0]):
            return ":".join((names[0], *(environ.get(name, "") for name in names)))
    return None


def _is_below(path: str, folder: str) -> bool:
    return folder != "/" and (path == folder or path.startswith(folder + "/"))
