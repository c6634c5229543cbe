"""``bashd ci gitlab``: GitLab's custom executor, one confined session for each job.

Four verbs, called by the runner one after the other. A failure of the job and one of
ours end with different codes, which the runner chooses; see `bashd.cli.gitlab_job`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bashd import __version__
from bashd.cli.foreground import Foreground
from bashd.cli.gitlab_job import GitlabJob, system_failure
from bashd.cli.interrupts import Interrupts
from bashd.cli.outcome import denial_lines, exit_status
from bashd.cli.parsing import add_client_options, add_command, open_link
from bashd.cli.report import print_json, report_failure
from bashd.cli.terminal import open_missing_streams
from bashd.client.ambient import ambient_of
from bashd.core.errors import (
    BashdError,
    HostError,
    InvalidParamsError,
    SandboxUnavailableError,
    TimeOverError,
    UnknownSessionError,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from bashd.cli.parsing import Subparsers

_DESCRIPTION = """\
Run the jobs of a CI system, each in a session of its own under the policy `ci`.

`bashd ci gitlab` is the custom executor of GitLab's runner, which calls its verbs
config, prepare, run SCRIPT STAGE and cleanup.
"""

_EPILOG = """\
examples, for the runner's config.toml:
  executor = "custom"
  [runners.custom]
    config_exec = "/usr/local/bin/bashd"
    config_args = ["ci", "gitlab", "config"]
    prepare_exec = "/usr/local/bin/bashd"
    prepare_args = ["ci", "gitlab", "prepare"]
    run_exec = "/usr/local/bin/bashd"
    run_args = ["ci", "gitlab", "run"]
    cleanup_exec = "/usr/local/bin/bashd"
    cleanup_args = ["ci", "gitlab", "cleanup"]

exit status:
  0, or what the runner asks for: $BUILD_FAILURE_EXIT_CODE when the job failed,
  $SYSTEM_FAILURE_EXIT_CODE when bashd did
"""

_VERBS: Final = ("config", "prepare", "run", "cleanup")


def add_parser(subparsers: Subparsers) -> None:
    """Add ``ci`` and its systems."""
    parser = add_command(
        subparsers,
        "ci",
        summary="run the jobs of a CI system",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    systems = parser.add_subparsers(dest="system", metavar="SYSTEM", required=True)
    gitlab = systems.add_parser("gitlab", help="GitLab's custom executor")
    gitlab.add_argument("verb", choices=_VERBS, metavar="VERB", help=", ".join(_VERBS))
    gitlab.add_argument(
        "words", nargs="*", metavar="SCRIPT STAGE", help="for run: what and why"
    )
    gitlab.add_argument("--policy", metavar="NAME", help="policy of the jobs, not `ci`")
    gitlab.add_argument(
        "--folder", metavar="DIR", help="where the jobs' own folders are made"
    )
    add_client_options(gitlab)


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit status."""
    open_missing_streams()
    try:
        job = GitlabJob(os.environ, args.folder)
        return _ACTIONS[args.verb](job, args)
    except BashdError as error:
        report_failure(error, as_json=False)
    except OSError as error:
        report_failure(HostError(f"{args.verb} failed: {error}"), as_json=False)
    return system_failure(os.environ)


def _config(job: GitlabJob, _: argparse.Namespace) -> int:
    # Nothing else may be on stdout.
    print_json(
        {
            "builds_dir": str(job.builds),
            "cache_dir": str(job.cache),
            "builds_dir_is_shared": False,
            "driver": {"name": "bashd", "version": __version__},
        }
    )
    return 0


def _prepare(job: GitlabJob, args: argparse.Namespace) -> int:
    _close(job, args)
    job.make()
    link = open_link(args)
    ambient, removed = ambient_of(job.ambient())
    params = {
        "cwd": str(job.work),
        "policy": args.policy or os.environ.get("BASHD_POLICY") or "ci",
        "approval": "never",
        "ambient": ambient,
        "env_removed": removed,
    }
    session: str = link.call("session.open", params)["session_id"]
    job.keep_session(session)
    # A cell that cannot be made is found out here, where it is not the job's fault.
    tried = link.call("exec.run", {"session_id": session, "command": "true"})
    if tried["exit_code"] != 0:
        raise SandboxUnavailableError(f"a command cannot be run for the job: {tried}")
    return 0


def _run(job: GitlabJob, args: argparse.Namespace) -> int:
    interrupts = Interrupts()
    if not args.words:
        raise InvalidParamsError("run needs the path of a script: run SCRIPT STAGE")
    session = job.session
    if session is None:
        raise UnknownSessionError(
            f"the job was not prepared: {job.folder} has no session"
        )
    params: dict[str, Any] = {
        "session_id": session,
        "command": Path(args.words[0]).read_text(encoding="utf-8"),
        "env": job.environment(),
        "stream": True,
    }
    if job.timeout_ms is not None:
        params["timeout_ms"] = job.timeout_ms
    link = open_link(args)
    script = Foreground(
        link, link.send("exec.run", params), interrupts, forward_stdin=False
    )
    try:
        result = script.wait()
    except TimeOverError as error:
        # The job's fault, however often it is tried.
        job.report_exit(report_failure(error, as_json=False))
        return job.build_failure
    lines = denial_lines(result["sandbox"])
    if result["timed_out"]:
        lines.append(f"[timed out after {result['timeout_ms'] / 1000:g} s]")
    script.conclude(result, lines)
    status = interrupts.exit_status if interrupts.count else exit_status(result)
    if status == 0:
        return 0
    job.report_exit(status)
    return job.build_failure


def _cleanup(job: GitlabJob, args: argparse.Namespace) -> int:
    try:
        _close(job, args)
    finally:
        job.remove()
    return 0


def _close(job: GitlabJob, args: argparse.Namespace) -> None:
    """End the job's session, and with it whatever the job left running."""
    session = job.session
    if session is None:
        return
    try:
        open_link(args).call("session.close", {"session_id": session})
    except UnknownSessionError:
        # Closed already, or gone with its daemon.
        return


_ACTIONS: Final[Mapping[str, Callable[[GitlabJob, argparse.Namespace], int]]] = {
    "config": _config,
    "prepare": _prepare,
    "run": _run,
    "cleanup": _cleanup,
}
