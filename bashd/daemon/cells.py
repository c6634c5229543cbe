"""Which cell a command runs in: built on demand, checked on every call, reaped idle.

A cell is keyed by what confines it. Before each command the host is compared with
what the cell was built from (`survey`), and the spare itself checks from inside that
its mounts are still there; on any difference the cell is retired, which means that
its running tasks go on in it while the next command gets a fresh one.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from bashd.core import confinement
from bashd.core.confinement import Found, Places, Plan
from bashd.core.errors import LimitError, RunnerFailedError
from bashd.core.landlock_rules import TRUNCATE_ABI
from bashd.core.model import Mode
from bashd.core.policy import Policy
from bashd.daemon import code, folders, survey, walls
from bashd.daemon.cell import Cell, CellSpec, open_cell
from bashd.daemon.cgroups import Cgroups
from bashd.daemon.evidence import RECORDING_ABI
from bashd.daemon.identity import Identity, run_as
from bashd.daemon.leftovers import CellFamily
from bashd.daemon.limits import PIDS, rlimits, threads_of
from bashd.daemon.metadata import Guards, Key, MetadataGuard, key_of
from bashd.daemon.network import SessionNetwork
from bashd.daemon.seccomp import NO_FILTERS, Switches, compile_filters
from bashd.daemon.survey import MountTable, Question, Workdir
from bashd.daemon.walls import (
    BWRAP,
    LANDLOCK,
    NO_SURROUNDINGS,
    Surroundings,
    Walls,
)
from bashd.launcher import kernel

_BUILDING_S = 3.0
"""For so long a cell is tried again while the host changes what it is made from: lock
files that an account tool makes beside masked ones, sockets of services that end."""
_PAUSE_S = 0.03
"""Between two tries, growing by as much each time."""
_BWRAP_ARGUMENTS = 9000
"""Source: bubblewrap.c, MAX_ARGS."""
_HELP_S = 5.0
"""For a program to say what its options are."""


def _nothing() -> None:
    return None


def _never() -> bool:
    return False


class CellKey(NamedTuple):
    """Everything that makes one cell of a session different from another."""

    mode: Mode
    runner: str | None
    root: str
    digest: str
    around: Surroundings


@dataclass(frozen=True, slots=True)
class BuiltCell:
    """What has to be known of a cell to judge its commands, or to have it back."""

    secret: str
    """Proves the keeper when it dials home; in memory and in the session's record."""
    mode: str
    runner: str | None
    gaps: tuple[str, ...]
    masked: tuple[str, ...]
    protected: tuple[str, ...]
    policy: str | None = None
    """Name of the policy; what is called from inside gets no other."""
    groups: tuple[str, ...] = ()
    """Folders of its cgroup, one a hierarchy; empty where it has none."""
    writable: tuple[str, ...] = ()
    network: str = "host"
    granted: tuple[str, ...] = ()
    """Paths of sockets that the policy grants."""
    unix_sockets: bool = True
    """Whether Unix sockets can be opened at all."""
    logged: bool = False
    """The filter logs Landlock layers that programs put on themselves, so that silence
    of the kernel's records means something."""


@dataclass(slots=True)
class Slot:
    """A cell and what it was built from."""

    cell_id: str
    cell: Cell
    built: BuiltCell
    plan: Plan
    walls: Walls | None
    """What it was built from; None under full access."""
    guard: MetadataGuard | None
    """None where nothing protected can be written to."""
    family: CellFamily | None
    """Likewise."""
    generation: int
    root: Workdir
    rlimits: tuple[tuple[int, int, int], ...]
    """(RLIMIT number, soft, hard) of its commands."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Programs of the host that start cells; found once."""

    bwrap: str | None
    bash: str
    interpreter: str
    abi: int
    sizes: bool
    """Whether bubblewrap can bound a mount in memory (0.7 and newer can)."""

    @classmethod
    def find(cls, bwrap_path: str | None) -> Tools:
        """Look for the programs in fixed places: no caller's PATH decides."""
        path = "/usr/local/bin:/usr/bin:/bin"
        bwrap = bwrap_path or shutil.which("bwrap", path=path)
        return cls(
            bwrap=bwrap,
            bash=shutil.which("bash", path=path) or "/bin/bash",
            interpreter=code.interpreter(),
            abi=kernel.landlock_abi(),
            sizes=bwrap is not None and _has_option(bwrap, "--size"),
        )


def _has_option(program: str, option: str) -> bool:
    """Whether a program's help names an option."""
    try:
        done = subprocess.run(
            [program, "--help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_HELP_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return option.encode() in (done.stdout + done.stderr).split()


@dataclass(frozen=True, slots=True)
class Home:
    """Where keepers dial when their daemon has died."""

    folder_fd: int
    """O_PATH descriptor of the folder with the adoption socket."""
    name: str
    orphan_timeout_s: float


@dataclass(slots=True)
class Environment:
    """What all cells of the daemon share."""

    tools: Tools
    mounts: MountTable
    spawn: Callable[[Cell], None]
    """Runs `Cell.pump` in the daemon's nursery."""
    spares: int
    cgroups: Cgroups = field(default_factory=Cgroups)
    """Where its commands are killed, limited and counted."""
    home: Home | None = None
    """How keepers find a new daemon; None: cells end with this one."""
    guarded: tuple[str, ...] = ()
    """The daemon's own configuration: protected in every writable root."""
    guards: Guards = field(default_factory=Guards)
    """Check after each command what became of protected metadata."""
    open_files: int = 1024
    """Soft limit on descriptors that commands start with. Default: Linux's."""
    records_on: Callable[[], bool] = _never
    """Whether the kernel records refusals and they are read."""


@dataclass(slots=True)
class SessionCells:
    """The cells of one session."""

    environment: Environment
    identity: Identity
    places: Places
    network: SessionNetwork
    slots: dict[CellKey, Slot] = field(default_factory=dict[CellKey, Slot])
    retired: list[Cell] = field(default_factory=list[Cell])
    built: dict[str, BuiltCell] = field(default_factory=dict[str, BuiltCell])
    """By cell id: what a record needs of every cell that may hold a task."""
    on_change: Callable[[], None] = _nothing
    """Called when *built* has changed."""
    on_retired: Callable[[], None] = _nothing
    """Called when a cell was taken out of use, which `reap` is to end."""
    room: Callable[[], contextlib.AbstractAsyncContextManager[None]] = (
        contextlib.nullcontext
    )
    """Held while a cell is built: whoever counts cells makes room for it."""
    guards: dict[Key, MetadataGuard] = field(default_factory=dict[Key, MetadataGuard])
    """Those in use by this session's cells; given back at its end."""
    opening: set[str] = field(default_factory=set[str])
    """Ids of cells that are being started."""
    building: dict[CellKey, trio.Lock] = field(default_factory=dict[CellKey, trio.Lock])
    _asked: tuple[Policy, tuple[object, ...], Question] | None = None
    """The last question with what it was made from: mostly it is the next, too."""

    async def obtain(
        self,
        mode: Mode,
        runner: str | None,
        root: str,
        policy: Policy,
        *,
        around: Surroundings = NO_SURROUNDINGS,
    ) -> Slot:
        """Return a cell that matches the host as it is now.

        Raises:
            StartError: The root is not usable.
            RunnerFailedError: The runner could not start the cell.
        """
        key = CellKey(mode, runner, root, policy.digest, around)
        slot = self.slots.get(key)
        if slot is not None and await self._still_fits(slot, key, policy):
            return slot
        lock = self.building.setdefault(key, trio.Lock())
        async with lock:
            slot = self.slots.get(key)
            if slot is not None:
                if await self._still_fits(slot, key, policy):
                    return slot
                self.retire(key)
            async with self.room():
                slot = await self._build(key, policy)
            self.slots[key] = slot
            self.opening.remove(slot.cell_id)
            return slot

    async def _still_fits(self, slot: Slot, key: CellKey, policy: Policy) -> bool:
        if slot.cell.lost:
            return False
        if not key.mode.confines:
            return True
        if self.environment.records_on() and not slot.built.logged:
            return False
        if self.environment.mounts.check() != slot.generation:
            return False

        seen = slot.walls
        assert seen is not None  # noqa: S101 - only full access has none
        asked = self._question(key, policy, slot.guard)
        stands = await run_as(self.identity, lambda: seen.stand(asked))
        # It may have been ended as idle meanwhile.
        return stands and not slot.cell.lost

    def _question(
        self, key: CellKey, policy: Policy, guard: MetadataGuard | None
    ) -> Question:
        guarded = self.environment.guarded
        repositories = () if guard is None else guard.repositories
        depends_on = (key, guarded, repositories)
        last = self._asked
        if last is not None and last[0] is policy and last[1] == depends_on:
            return last[2]
        asked = walls.question(
            policy,
            workspace=key.root,
            identity=self.identity,
            around=key.around,
            runner=key.runner,
            guarded=guarded,
            repositories=repositories,
        )
        self._asked = (policy, depends_on, asked)
        return asked

    async def _guard(self, key: CellKey, policy: Policy) -> MetadataGuard | None:
        """Return the guard of what is protected in a cell's roots.

        Raises:
            StartError: The workspace is not usable.
        """
        asked = self._question(key, policy, None)
        if not asked.writes:
            return None
        deep = key.runner == LANDLOCK
        guard_key = key_of(asked, deep=deep)
        guard = self.guards.get(guard_key)
        if guard is None:
            acquire = self.environment.guards.acquire
            guard = self.guards[guard_key] = acquire(
                guard_key, self.identity, deep=deep
            )
        await guard.prepare(asked)
        return guard

    async def _build(self, key: CellKey, policy: Policy) -> Slot:
        """Make a cell; again where the host changed under the runner's hands.

        Raises:
            RunnerFailedError: The runner fails, and not for want of luck.
        """
        deadline = trio.current_time() + _BUILDING_S
        for attempt in itertools.count(1):
            generation = self.environment.mounts.check()
            seen: Walls | None = None
            guard = await self._guard(key, policy)
            if key.mode.confines:
                asked = self._question(key, policy, guard)
                seen = await run_as(self.identity, lambda: Walls.look(asked))  # noqa: B023 - awaited here
            try:
                slot = await self._build_once(key, policy, seen, generation)
            except RunnerFailedError:
                last = trio.current_time() > deadline
                if last or seen is None:
                    raise
                if not await self._has_changed(seen, generation):
                    raise
                await trio.sleep(attempt * _PAUSE_S)
            else:
                slot.guard = guard
                return slot
        raise AssertionError  # a try returns or raises

    async def _has_changed(self, seen: Walls, generation: int) -> bool:
        """Whether what a cell was made from is no longer so: then it may just fail."""
        if self.environment.mounts.check() != generation:
            return True
        return await run_as(self.identity, seen.are_outdated)

    async def _build_once(
        self, key: CellKey, policy: Policy, seen: Walls | None, generation: int
    ) -> Slot:
        if seen is None:
            root = await run_as(self.identity, lambda: survey.find_root(key.root))
            plan, found = Plan(), Found(roots=(key.root,))
        else:
            root, found = seen.root, seen.survey.found
            plan = walls.plan(
                policy,
                seen.survey,
                runner=key.runner,
                places=self.places,
                abi=self.environment.tools.abi,
                identity=self.identity,
                sizes=self.environment.tools.sizes,
            )
        await folders.make_nested(self.places, plan, self.identity)
        cell_id = secrets.token_hex(8)
        groups = self.environment.cgroups.of_cell(
            cell_id, policy.limits, self.identity.uid
        )
        built = BuiltCell(
            secret=secrets.token_hex(16),
            mode=str(key.mode),
            runner=key.runner,
            gaps=plan.gaps,
            masked=(*(path for path, _ in found.masks), *found.deputies),
            protected=(
                *(path for path, _ in found.protected),
                *found.anchors,
            ),
            policy=policy.name,
            groups=() if groups is None else groups.folders,
            writable=plan.writable,
            network=policy.network,
            granted=found.sockets,
            unix_sockets=key.runner == BWRAP or policy.sockets.unix,
            logged=self.environment.records_on(),
        )
        spec = await self._spec(key, policy, plan, self._home(cell_id, built.secret))
        limits = await self._rlimits(key, policy)
        with self._recorded(cell_id, built):
            cell = await open_cell(spec, groups)
        family = None
        if policy.mode is Mode.WORKSPACE_WRITE:
            # Now, while the zygote is the only child there is.
            family = CellFamily.of_new_cell(cell, has_runner=key.runner == BWRAP)
        self.environment.spawn(cell)
        cell.keep_spares = self.environment.spares
        cell.ask_for_spares(cell.keep_spares)
        return Slot(
            cell_id, cell, built, plan, seen, None, family, generation, root, limits
        )

    async def _rlimits(
        self, key: CellKey, policy: Policy
    ) -> tuple[tuple[int, int, int], ...]:
        uid = self.identity.uid
        kept = self.environment.cgroups.limits
        others: int | None = 0
        if uid == 0:
            others = None
        elif PIDS not in kept and (os.geteuid() == 0 or key.runner != BWRAP):
            # Without a user namespace of its own the user's other processes count.
            others = await trio.to_thread.run_sync(threads_of, uid)
        return rlimits(
            policy.limits,
            kept=kept,
            others=others,
            open_files=self.environment.open_files,
        )

    @contextlib.contextmanager
    def _recorded(self, cell_id: str, built: BuiltCell) -> Generator[None]:
        """Have the session's record tell of a cell before it is there.

        If the daemon dies meanwhile, the next one knows whose groups to remove. Until
        `obtain` has its slot, the cell counts as one that is being opened.
        """
        self._forget_ended()
        self.built[cell_id] = built
        self.opening.add(cell_id)
        self.on_change()
        try:
            yield
        except BaseException:
            self.opening.remove(cell_id)
            del self.built[cell_id]
            raise

    def _forget_ended(self) -> None:
        live = {slot.cell_id for slot in self.slots.values() if not slot.cell.lost}
        busy = {cell.cell_id for cell in self.retired if not cell.lost}
        for cell_id in list(self.built):
            if cell_id not in live | busy | self.opening:
                del self.built[cell_id]

    def _home(self, cell_id: str, secret: str) -> dict[str, object] | None:
        home = self.environment.home
        if home is None:
            return None
        return {
            "name": home.name,
            "uid": os.geteuid(),
            "cell": cell_id,
            "secret": secret,
            "timeout_s": home.orphan_timeout_s,
        }

    async def _spec(
        self,
        key: CellKey,
        policy: Policy,
        plan: Plan,
        home: dict[str, object] | None,
    ) -> CellSpec:
        tools = self.environment.tools
        confined = key.mode.confines
        network = await self.network.prepare(policy.network if confined else "host")
        settings: dict[str, object] = {
            "become": self._become(),
            "confined": confined,
            "own_layer": key.runner == LANDLOCK,
            "landlock": walls.landlock_settings(plan),
            "landlock_log": tools.abi >= RECORDING_ABI,
            "mounts": await run_as(self.identity, lambda: walls.expected_mounts(plan)),
            "bash": tools.bash,
            "home": home,
        }
        filters = NO_FILTERS
        if confined:
            filters = compile_filters(
                Switches(
                    shared_host=key.runner == LANDLOCK,
                    unix_sockets=key.runner == BWRAP or policy.sockets.unix,
                    inet_sockets=network.inet_sockets,
                    namespaces=policy.namespaces,
                    truncation=key.runner == BWRAP or tools.abi >= TRUNCATE_ABI,
                    log_layers=self.environment.records_on(),
                )
            )
        if confined and key.runner == BWRAP:
            argv, arguments = self._bwrap_command(plan)
            lib = confinement.LIB_IN_CELL
        else:
            argv, arguments, lib = (), (), self.places.lib_dir
        return CellSpec(
            argv=(
                *network.enter,
                *argv,
                tools.interpreter, "-I", "-S", "-c", code.LOADER, lib,
            ),
            bwrap_args=arguments,
            settings=settings,
            filters=filters,
            confined=confined,
            expect_uid=self.identity.uid,
            mode=str(key.mode),
            runner=key.runner or "none",
            home_fd=-1
            if self.environment.home is None
            else self.environment.home.folder_fd,
            cell_id="" if home is None else str(home["cell"]),
            pass_fds=network.fds,
        )  # fmt: skip

    def _become(self) -> list[object] | None:
        if os.geteuid() != 0:
            return None
        return [self.identity.uid, self.identity.gid, list(self.identity.groups)]

    def _bwrap_command(self, plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
        bwrap = self.environment.tools.bwrap
        if bwrap is None:
            raise RunnerFailedError("bubblewrap is not installed")
        arguments = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1"]
        if os.geteuid() == 0:
            # No user namespace: files keep their owners. What is left is what it
            # takes to become the peer, and goes with that.
            arguments += ["--cap-drop", "ALL"]
            for name in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
                arguments += ["--cap-add", name]
        else:
            arguments += ["--unshare-user", "--cap-drop", "ALL"]
        if len(arguments) + len(plan.bwrap) > _BWRAP_ARGUMENTS:
            raise LimitError(
                "the policy masks and protects more paths than bubblewrap takes"
                f" ({_BWRAP_ARGUMENTS} arguments, about three a path): mask a folder"
                " instead of what is in it"
            )
        # Outside of --args: it is filled in when the cell is opened.
        start = (bwrap, "--info-fd", "{info}", "--args", "{args}", "--")
        return start, (*arguments, *plan.bwrap)

    # -- life ---------------------------------------------------------------------

    def retire(self, key: CellKey) -> None:
        """Take a cell out of use; it ends when its last task has."""
        slot = self.slots.pop(key, None)
        if slot is not None:
            slot.cell.retired = True
            self.retired.append(slot.cell)
            self.on_retired()

    def discard(self, cell: Cell) -> None:
        """Take a cell out of use whichever key it has."""
        for key, slot in list(self.slots.items()):
            if slot.cell is cell:
                self.retire(key)

    def live(self) -> list[Cell]:
        """Return every cell that has not ended, retired ones included."""
        cells = [slot.cell for slot in self.slots.values()] + self.retired
        return [cell for cell in cells if not cell.lost]

    def idle(self) -> list[Cell]:
        """Return cells without a command: they may end, the next call builds anew."""
        return [cell for cell in self.live() if not cell.at_work]

    async def end_cell(self, cell: Cell) -> None:
        """End one cell of the session and whatever runs in it."""
        self.discard(cell)
        if cell in self.retired:
            self.retired.remove(cell)
        await cell.end()

    def due(self, idle_s: float) -> float:
        """Return the time before which `reap` has nothing to do, by trio's clock.

        In the past while there is something it must look at again and again.
        """
        if self.retired:
            return -math.inf
        cells = [slot.cell for slot in self.slots.values()]
        return min((cell.last_used + idle_s for cell in cells), default=math.inf)

    async def reap(self, idle_s: float) -> None:
        """End retired cells without tasks and cells idle for longer than *idle_s*."""
        now = trio.current_time()
        for key, slot in list(self.slots.items()):
            cell = slot.cell
            if cell.lost or (not cell.at_work and now - cell.last_used > idle_s):
                self.retire(key)
        done = [cell for cell in self.retired if not cell.at_work]
        for cell in done:
            self.retired.remove(cell)
            # Here, not when `end` gets its turn: nobody may start a command between.
            cell.lost = True
        async with trio.open_nursery() as nursery:
            for cell in done:
                nursery.start_soon(cell.end)

    async def end(self) -> None:
        """End every cell of the session and all that runs in them."""
        cells = [slot.cell for slot in self.slots.values()] + self.retired
        self.slots.clear()
        self.retired.clear()
        async with trio.open_nursery() as nursery:
            for cell in cells:
                nursery.start_soon(cell.end)
        while self.guards:
            self.environment.guards.release(self.guards.popitem()[0])
