"""The functional probe of one runner: a real cell, a real command, a real refusal."""

from __future__ import annotations

import os
import secrets

import trio

from bashd.core.confinement import Places
from bashd.core.errors import RunnerFailedError
from bashd.core.model import Mode
from bashd.core.policy import Policy
from bashd.daemon.cells import Environment, SessionCells
from bashd.daemon.folders import DaemonFolders, make_session, remove_session
from bashd.daemon.identity import Identity
from bashd.daemon.network import SessionNetwork
from bashd.daemon.room import RESERVE, descriptors_left, disk_is_full
from bashd.daemon.runners import NoRoomError, probe_script
from bashd.launcher import wire

_OUTPUT_BYTES = 256


async def probe_runner(
    runner: str, folders: DaemonFolders, environment: Environment
) -> str | None:
    """Try *runner* as the daemon's own user; returns why not, or None.

    Raises:
        NoRoomError: Disk or descriptors have run out.
        RunnerFailedError: The cell did not come up; the message says why.
    """
    try:
        why = await _probe(runner, folders, environment)
    except (OSError, RunnerFailedError):
        _check_room(folders)
        raise
    if why is not None:
        _check_room(folders)
    return why


def _check_room(folders: DaemonFolders) -> None:
    if disk_is_full(folders.state_dir):
        raise NoRoomError(f"the disk of {folders.state_dir} is full; free some of it")
    if descriptors_left() < RESERVE:
        raise NoRoomError("the daemon has no descriptors left; end some tasks")


async def _probe(
    runner: str, folders: DaemonFolders, environment: Environment
) -> str | None:
    identity = Identity(
        os.geteuid(), os.getegid(), tuple(os.getgroups()), "probe", "/nonexistent"
    )
    places = folders.places("probe-" + secrets.token_hex(8))
    await make_session(places, identity)
    network = SessionNetwork(places.lib_dir)
    cells = SessionCells(environment, identity, places, network)
    try:
        return await _run_probe(runner, places, cells)
    finally:
        with trio.CancelScope(shield=True):
            await cells.end()
            network.close()
            await remove_session(places, identity)


async def _run_probe(runner: str, places: Places, cells: SessionCells) -> str | None:
    workspace = f"{places.tmp_dir}/workspace"
    os.mkdir(workspace)  # noqa: PTH102 - one call on the daemon's own folder
    policy = Policy("probe", mode=Mode.WORKSPACE_WRITE)
    slot = await cells.obtain(Mode.WORKSPACE_WRITE, runner, workspace, policy)
    spare = await slot.cell.take_spare()
    command, word = probe_script(places.output_dir)
    in_cell = "/tmp" if runner == "bwrap" else places.tmp_dir  # noqa: S108 - in the cell
    request = wire.Request(
        command=command.encode(),
        workdir=os.fsencode(slot.root.path),
        workdir_dev=slot.root.dev,
        workdir_ino=slot.root.ino,
        has_stdin=False,
        has_script=False,
        limits=(),
        environment=(b"PATH=/usr/bin:/bin", b"TMPDIR=" + in_cell.encode()),
    )
    spare.send(request, None, None)
    await spare.exited.wait()
    outcome = spare.outcome()
    said = _read(spare.stdout_fd)
    why = _read(spare.stderr_fd)
    exited = spare.exit
    slot.cell.release(spare)
    if isinstance(outcome, wire.Failed):
        raise RunnerFailedError(f"step {outcome.step} failed: {outcome.reason}")
    if exited is None:
        raise RunnerFailedError("the cell ended during the probe")
    if exited.status != 0 or said.strip() != word:
        return f"the probe's walls did not hold (status {exited.status}): {why or said}"
    if os.listdir(places.output_dir):  # noqa: PTH208
        return "the probe wrote where it must not"
    return None


def _read(fd: int) -> str:
    try:
        return os.read(fd, _OUTPUT_BYTES).decode(errors="replace")
    except BlockingIOError:
        return ""
