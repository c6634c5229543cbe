"""``bashd doctor --verify``: tries every wall of this host from inside, rung by rung.

A daemon of its own is started for each rung, with canaries of its own: files, a secret,
sockets, a process. Everything is tried without walls first; what does not work there
proves nothing. Nothing else on the machine is touched, and nothing is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bashd.cli import doctor_verify_inside
from bashd.cli.doctor_verify_canaries import Canaries, put_back, set_up
from bashd.cli.doctor_verify_walls import (
    OWN_FAILURE,
    THROUGH,
    WALLS,
    Attempt,
    Outcome,
    RungReport,
    WallReport,
    exit_status,
    judge_wall,
)
from bashd.core.errors import BashdError, HostError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from bashd.client import SyncClient

RUNGS: Final = ("bwrap", "landlock")
"""The rungs in the order a daemon tries them."""
_START_S: Final = 30
_FULL_ACCESS: Final = "danger-full-access"


def run(*, as_json: bool) -> int:
    """Verify, tell, and return the exit status; see `exit_status`.

    Raises:
        HostError: The canaries cannot be set up.
    """
    rungs = [verify(rung) for rung in RUNGS]
    if as_json:
        status = exit_status(rungs)
        print(json.dumps({"rungs": _by_name(rungs), "exit_status": status}))
    else:
        print(as_text(rungs))
    return exit_status(rungs)


def verify(rung: str) -> RungReport:
    """Run the battery on one rung."""
    with contextlib.ExitStack() as stack:
        canaries = stack.enter_context(set_up())
        try:
            daemon = stack.enter_context(_daemon(rung, canaries))
            return _report(rung, daemon, canaries)
        except BashdError as error:
            return RungReport(rung, False, "none", reason=error.message)  # noqa: FBT003


@contextlib.contextmanager
def _daemon(rung: str, canaries: Canaries) -> Generator[str]:
    """Run a daemon that stands on *rung*; yields its socket.

    Raises:
        HostError: It did not start.
    """
    folder, path = canaries.folder, canaries.at["daemon"]
    config = folder / f"{rung}.toml"
    config.write_text(
        f'[sandbox]\nrunner = "{rung}"\n[daemon]\nstate_dir = "{folder}/state"\n'
    )
    read_fd, write_fd = os.pipe()
    with (folder / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "bashd.daemon", "--socket", path),
                *("--config", str(config), "--ready-fd", str(write_fd)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[write_fd],
            env=canaries.environ,
            start_new_session=True,
        )
    os.close(write_fd)
    try:
        said = b""
        while select.select([read_fd], [], [], _START_S)[0]:
            piece = os.read(read_fd, 4096)
            if not piece:
                break
            said += piece
        if said != b"ready\n":
            reason = said.decode(errors="replace").strip() or "it did not answer"
            msg = f"a daemon on the rung {rung} did not start: {reason}"
            raise HostError(msg)
        yield path
    finally:
        os.close(read_fd)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_START_S)
        process.kill()
        process.wait()


def _report(rung: str, path: str, canaries: Canaries) -> RungReport:
    from bashd.client import connect_sync  # noqa: PLC0415 - no other command waits

    with connect_sync(
        socket=path, cwd=canaries.at["workspace"], environ=canaries.environ
    ) as client:
        probe = client.run("true", mode="workspace-write", policy="verify")
        facts = probe.sandbox
        enforcement = "none" if facts is None else facts.enforcement or "none"
        put_back(canaries)
        walls: list[WallReport] = []
        for wall in WALLS:
            free: dict[str, str] = {}
            walled: dict[str, str] = {}
            for attempts in _alike(wall.attempts):
                names = [attempt.name for attempt in attempts]
                free |= _try(client, names, canaries, mode=_FULL_ACCESS)
                put_back(canaries)
                walled |= _try(
                    client,
                    names,
                    canaries,
                    mode=attempts[0].mode,
                    policy=attempts[0].policy,
                )
                put_back(canaries)
            walls.append(judge_wall(wall, rung, free, walled))
        client.sessions.close(client.session.session_id)
    return RungReport(rung, True, enforcement, walls=tuple(walls))  # noqa: FBT003


def _alike(attempts: tuple[Attempt, ...]) -> Iterator[list[Attempt]]:
    """Group attempts that need the same mode and policy: one command for each group."""
    groups: dict[tuple[str, str, str], list[Attempt]] = {}
    for attempt in attempts:
        own = attempt.name if attempt.alone else ""
        groups.setdefault((attempt.mode, attempt.policy, own), []).append(attempt)
    yield from groups.values()


def _try(
    client: SyncClient, names: list[str], canaries: Canaries, **options: str
) -> dict[str, str]:
    """Try in one command; returns what came of each, as it stands afterwards."""
    interpreter = os.path.realpath(
        getattr(sys, "_base_executable", None) or sys.executable
    )
    try:
        result = client.run(
            'exec "$VERIFY_INTERPRETER" -I -S - "$VERIFY_ASKED"',
            env={
                "VERIFY_INTERPRETER": interpreter,
                "VERIFY_ASKED": json.dumps({"try": names, "at": canaries.at}),
            },
            stdin=Path(doctor_verify_inside.__file__).read_bytes(),
            mode=options["mode"],
            policy=options.get("policy"),
        )
        said: dict[str, str] = json.loads(result.stdout.text)
    except BashdError as error:
        return dict.fromkeys(names, f"{OWN_FAILURE}: {error.message}")
    except ValueError:
        return dict.fromkeys(names, f"{OWN_FAILURE}: it printed no outcomes")
    for name, (is_there, otherwise) in _ON_THE_HOST.items():
        if said.get(name) == THROUGH and not is_there(canaries):
            said[name] = otherwise
    return said


def _is_runnable(name: str) -> Callable[[Canaries], bool]:
    return lambda canaries: os.access(canaries.folder / "workspace" / name, os.X_OK)


def _is_written(canaries: Canaries) -> bool:
    return Path(canaries.at["host_tmp"]).read_text() != canaries.at["token"]


def _is_configured(canaries: Canaries) -> bool:
    return "pager" in (canaries.folder / "workspace/.git/config").read_text()


_UNDONE: Final = "undone after the command"
_ON_THE_HOST: Final[dict[str, tuple[Callable[[Canaries], bool], str]]] = {
    "write_tmp": (_is_written, "a /tmp of its own"),
    "plant_hook": (_is_runnable(".git/hooks/pre-commit"), _UNDONE),
    "plant_configuration": (_is_configured, _UNDONE),
    "plant_repository": (_is_runnable("r/.git/hooks/post-merge"), _UNDONE),
    "replace_repository": (_is_runnable(".git/hooks/post-merge"), _UNDONE),
    "plant_file": (_is_runnable(".envrc"), _UNDONE),
}
"""Attempts that prove something only if the host sees it after the command, and what it
was where the host does not."""


def as_text(rungs: list[RungReport]) -> str:
    """Return the report for a person."""
    lines: list[str] = []
    for rung in rungs:
        if not rung.usable:
            lines += [f"{rung.name}: not usable here", f"  {rung.reason}", ""]
            continue
        proved = [t for w in rung.walls for t in w.attempts]
        held = sum(tried.outcome is Outcome.HOLDS for tried in proved)
        lines.append(f"{rung.name} ({rung.enforcement}): {held} attempts were stopped")
        for wall in rung.walls:
            count = sum(tried.outcome is Outcome.HOLDS for tried in wall.attempts)
            lines.append(f"  {wall.outcome!s:<10} {wall.name} ({count})")
            lines += [
                f"             {tried.outcome}: {tried.words}: {tried.said}"
                for tried in wall.attempts
                if tried.outcome is not Outcome.HOLDS
            ]
        lines.append("")
    return "\n".join(lines).rstrip()


def _by_name(rungs: list[RungReport]) -> dict[str, object]:
    found: dict[str, object] = {}
    for rung in rungs:
        walls = [{**asdict(wall), "outcome": str(wall.outcome)} for wall in rung.walls]
        found[rung.name] = {**asdict(rung), "walls": walls}
    return found
