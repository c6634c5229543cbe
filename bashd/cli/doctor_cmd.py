"""``bashd doctor``: what this machine can do, and what to do for more.

Needs no daemon and changes nothing: it tries each wall in a child and tells which rung
a daemon of this account would stand on.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from bashd.cli.doctor_findings import Finding, State, Verdict, judge
from bashd.core.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from bashd.core.config import SandboxConfig

_WIDTH = 88
_EPILOG = """\
exit status:
  0  commands are confined fully
  1  commands are confined, but partially; the gaps are listed
  2  nothing here can confine a command, so none will run
  with --verify:
  0  every attempt was stopped, on every rung that is usable here
  1  what got through is what the rung says of itself (enforcement is partial)
  2  no rung is usable
  3  something got through that must not: do not rely on this machine's walls

examples:
  bashd doctor            what a daemon of yours can do
  sudo bashd doctor       what a system service can do
  bashd doctor --json | jq .runner
  bashd doctor --verify   try to get out, with canaries, on each rung
"""


def add_parser(
    # argparse has no public name for what add_subparsers returns.
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],  # pyright: ignore[reportPrivateUsage]
) -> argparse.ArgumentParser:
    """Add ``doctor`` to *subparsers* and return its parser."""
    from argparse import RawDescriptionHelpFormatter  # noqa: PLC0415 - run is thin

    parser = subparsers.add_parser(
        "doctor",
        help="what this machine can confine, and what to do for more",
        description="Try every wall and say which runner a daemon of yours would use.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="try every wall from inside, with canaries, on each rung",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="judge for this bashd.toml (its runner and bwrap_path) instead of yours",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Look, tell, and return the exit status.

    Raises:
        ConfigError: bashd.toml is wrong, or ``--config`` names no file.
    """
    if args.verify:
        from bashd.cli import doctor_verify  # noqa: PLC0415 - a plain look is quick

        return doctor_verify.run(as_json=args.json)
    sandbox = _sandbox_config(args.config)
    findings = examine(sandbox.bwrap_path)
    verdict = judge(findings, root=os.geteuid() == 0, wanted=sandbox.runner)
    if args.json:
        print(json.dumps(as_object(findings, verdict)))
    else:
        print(as_text(findings, verdict))
    return verdict.exit_status


def examine(bwrap_path: str | None = None) -> list[Finding]:
    """Look at everything; takes well under a second where nothing hangs."""
    from bashd.cli.doctor_host import look_at_host  # noqa: PLC0415 - run is thin
    from bashd.cli.doctor_walls import look_at_walls  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="bashd-doctor-") as folder:
        return [*look_at_walls(folder, bwrap_path), *look_at_host()]


def as_object(findings: list[Finding], verdict: Verdict) -> dict[str, object]:
    """Return what ``--json`` prints."""
    return {
        **_account(),
        **dataclasses.asdict(verdict),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


def as_text(findings: list[Finding], verdict: Verdict) -> str:
    """Return the report for a person."""
    account = _account()
    lines = [
        f"a daemon of uid {account['uid']} on Linux {account['kernel']},"
        f" Python {account['python']}",
        "",
    ]
    for finding in findings:
        label = f"  {finding.state!s:<8} {finding.name:<16} "
        lines.append(_wrapped(label, finding.detail))
        # What is fine needs no advice, and what limits the rung is said below.
        if finding.advice and finding.state is not State.OK:
            lines.append(_wrapped(" " * 28 + "fix: ", finding.advice))
    lines += ["", f"runner: {verdict.runner or 'none'} ({verdict.enforcement})"]
    lines.append(_wrapped("  because ", verdict.reason))
    lines += [_wrapped("  gap: ", gap) for gap in verdict.gaps]
    if verdict.exit_status:
        lines += [_wrapped("  better: ", advice) for advice in verdict.better]
    return "\n".join(lines)


def _sandbox_config(explicit: str | None) -> SandboxConfig:
    """Read what the daemon of this account would read."""
    from bashd.core.config import SandboxConfig, parse_config  # noqa: PLC0415

    if explicit is not None:
        path = Path(explicit)
    elif os.geteuid() == 0:
        path = Path("/etc/bashd/bashd.toml")
    else:
        folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
        path = Path(folder).expanduser() / "bashd" / "bashd.toml"
    try:
        text = path.read_text()
    except FileNotFoundError:
        if explicit is None:
            return SandboxConfig()
        msg = f"{path}: no such file; check --config"
        raise ConfigError(msg) from None
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); fix its permissions"
        raise ConfigError(msg) from None
    return parse_config(text, str(path)).sandbox


def _wrapped(label: str, text: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=label, subsequent_indent=" " * len(label)
    )


def _account() -> dict[str, object]:
    return {
        "uid": os.geteuid(),
        "kernel": platform.release(),
        "python": ".".join(map(str, sys.version_info[:3])),
    }
