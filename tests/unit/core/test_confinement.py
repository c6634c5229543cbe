"""What a cell of each shipped policy is made of, as text: a change shows as a diff.

``BASHD_GOLDEN=write`` writes the files anew, for a change that is meant.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.confinement import Found, Places, Plan, plan_bwrap, plan_landlock
from bashd.core.landlock_rules import EXECUTE, READ_FILE, WRITE_FILE, grant_all_but
from bashd.core.model import Mode
from bashd.core.paths import is_below, is_below_any
from bashd.core.policy import Policy

GOLDEN = Path(__file__).parent / "golden"
POLICIES = Path(__file__).parents[3] / "policies"
HOME = "/home/u"
STATE = f"{HOME}/.local/state/bashd"
SESSION = f"{STATE}/sessions/s"
ABI = 7

PLACES = Places(
    state_dir=STATE,
    session_dir=SESSION,
    tmp_dir=f"{SESSION}/tmp",
    var_tmp_dir=f"{SESSION}/var-tmp",
    output_dir=f"{SESSION}/out",
    lib_dir=f"{STATE}/lib/digest",
    void_dir=f"{STATE}/void",
    void_file=f"{STATE}/void-file",
    socket="/run/user/1000/bashd/bashd.sock",
    socket_dir="/run/user/1000/bashd",
)
FOUND = Found(
    roots=(f"{HOME}/work",),
    masks=((f"{HOME}/.ssh", True), (f"{HOME}/.netrc", False)),
    deputies=(f"{HOME}/.emacs.d/server/server",),
    protected=(
        (f"{HOME}/work/.git/config", False),
        (f"{HOME}/work/.git/hooks", True),
        (f"{HOME}/work/.vscode", True),
    ),
    anchors=(f"{HOME}/work/.git",),
    code=("/usr/bin/python3.11", f"{HOME}/work/.venv"),
    run_folders=("/run/systemd/resolve",),
)
TREE = {
    "/": ["etc", "home", "usr", "var", "run", "tmp", "proc"],
    "/home": ["u", "v"],
    "/home/u": ["work", ".ssh", ".netrc", ".local", ".profile"],
    "/home/u/.local": ["state", "share"],
    "/home/u/.local/state": ["bashd", "other"],
    "/run": ["user", "systemd"],
    "/run/user": ["1000", "1001"],
    "/run/user/1000": ["bashd", "bus"],
}


def list_folder(path: str) -> list[tuple[str, bool]]:
    return [(name, False) for name in TREE.get(path, [])]


def bwrap(
    mode: Mode, found: Found = FOUND, places: Places = PLACES, **options: Any
) -> Plan:
    options = {"scratch": True, "root_identity": False, **options}
    return plan_bwrap(mode=mode, places=places, found=found, abi=ABI, **options)


def landlock(mode: Mode, found: Found = FOUND, **options: bool) -> Plan:
    return plan_landlock(
        mode=mode,
        places=PLACES,
        found=found,
        abi=ABI,
        list_folder=list_folder,
        **{"scratch": True, **options},
    )


def as_text(plan: Plan) -> str:
    lines = ["# bubblewrap"]
    for word in plan.bwrap:
        if word.startswith("--") or not lines[-1].startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    lines += ["# Landlock", f"handled {plan.landlock_handled:#x}"]
    lines.append(f"scoped {plan.landlock_scoped:#x}")
    lines += [f"allow {rights:#06x} {path}" for path, rights in plan.landlock_allow]
    lines += ["# expected", *(" ".join(map(str, each)) for each in plan.stand_ins)]
    lines += ["# writable", *plan.writable, "# gaps", *plan.gaps]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("runner", ["bwrap", "landlock"])
@pytest.mark.parametrize("policy", ["read-only", "workspace-write", "ci"])
def test_a_cell_of_a_shipped_policy_is_as_it_was(policy: str, runner: str):
    said = tomllib.loads((POLICIES / f"{policy}.toml").read_text())
    mode = Mode(said["mode"])
    if runner == "bwrap":
        plan = bwrap(
            mode,
            found=replace(FOUND, nested=said.get("nested", False)),
            scratch=said.get("scratch", True),
            namespaces=said.get("namespaces", False),
            shm_bytes=said["limits"].get("shm_bytes"),
        )
    else:
        plan = landlock(mode, scratch=said.get("scratch", True))
    file = GOLDEN / f"{policy}-{runner}.txt"
    if os.environ.get("BASHD_GOLDEN") == "write":
        file.write_text(as_text(plan))
    assert as_text(plan) == file.read_text()


def options_on(plan: Plan, path: str) -> list[str]:
    """Return the mount options whose destination is *path*, in order."""
    found: list[str] = []
    words = list(plan.bwrap)
    for at, word in enumerate(words):
        if word in ("--bind", "--ro-bind", "--dev-bind") and words[at + 2] == path:
            found.append(f"{word} {words[at + 1]}")
        elif word == "--tmpfs" and words[at + 1] == path:
            found.append(word)
    return found


def position(plan: Plan, path: str) -> int:
    return [i for i, word in enumerate(plan.bwrap) if word == path][-1]


class TestUnderBubblewrap:
    def test_read_only_binds_nothing_of_the_host_writable(self):
        plan = bwrap(Mode.READ_ONLY)
        writable = [
            plan.bwrap[at + 1] for at, word in enumerate(plan.bwrap) if word == "--bind"
        ]
        assert set(writable) == {PLACES.tmp_dir, PLACES.var_tmp_dir}

    def test_protected_metadata_is_mounted_after_what_holds_it(self):
        plan = bwrap(Mode.WORKSPACE_WRITE)
        work = f"{HOME}/work"
        order = [work, f"{work}/.git", f"{work}/.git/hooks"]
        assert [position(plan, path) for path in order] == sorted(
            position(plan, path) for path in order
        )
        assert options_on(plan, f"{work}/.git") == [f"--bind {work}/.git"]
        assert options_on(plan, f"{work}/.git/hooks") == [
            f"--ro-bind {work}/.git/hooks"
        ]

    def test_a_socket_among_others_files_is_masked_by_itself(self):
        """Hiding its folder would hide a home or a workspace."""
        places = replace(
            PLACES,
            socket=f"{HOME}/s.sock",
            socket_dir=None,
            socket_files=(f"{HOME}/s.sock", f"{HOME}/s.sock.adopt"),
        )
        plan = bwrap(Mode.WORKSPACE_WRITE, places=places)
        assert options_on(plan, HOME) == []
        for path in places.socket_files:
            assert options_on(plan, path) == [f"--ro-bind {PLACES.void_file}"]
        assert {p for p, _, _ in plan.stand_ins} >= set(places.socket_files)

    def test_a_socket_inside_the_workspace_cannot_be_moved_away_with_its_folder(self):
        places = replace(
            PLACES,
            socket=f"{HOME}/work/run/s.sock",
            socket_dir=f"{HOME}/work/run",
        )
        plan = bwrap(Mode.WORKSPACE_WRITE, places=places)
        assert options_on(plan, f"{HOME}/work/run") == ["--tmpfs"]

    def test_nested_shows_the_socket_and_nothing_beside_it(self):
        plan = bwrap(Mode.WORKSPACE_WRITE, replace(FOUND, nested=True))
        assert options_on(plan, PLACES.socket) == [f"--bind {PLACES.socket}"]
        assert options_on(plan, f"{PLACES.socket}.adopt") == []

    def test_a_granted_socket_in_a_masked_folder_is_all_that_is_there(self):
        agent = f"{HOME}/.ssh/agent"
        plan = bwrap(Mode.READ_ONLY, replace(FOUND, sockets=(agent,)))
        assert options_on(plan, f"{HOME}/.ssh") == ["--tmpfs"]
        assert options_on(plan, agent) == [f"--bind {agent}"]

    def test_a_granted_socket_below_tmp_gets_a_file_to_be_mounted_on(self):
        plan = bwrap(Mode.READ_ONLY, replace(FOUND, sockets=("/tmp/ssh-x/agent.1",)))
        assert "tmp/ssh-x/agent.1" in plan.nested_files
        assert plan.nested_folders == ()

    def test_deputies_are_covered_but_not_granted_ones(self):
        deputy = FOUND.deputies[0]
        assert options_on(bwrap(Mode.READ_ONLY), deputy) == [
            f"--ro-bind {PLACES.void_file}"
        ]
        granted = bwrap(Mode.READ_ONLY, replace(FOUND, sockets=(deputy,)))
        assert options_on(granted, deputy) == [f"--bind {deputy}"]

    def test_namespaces_cost_the_second_wall_and_say_so(self):
        plan = bwrap(Mode.WORKSPACE_WRITE, namespaces=True)
        assert plan.landlock_handled == 0
        assert plan.landlock_scoped
        assert any("one wall" in gap for gap in plan.gaps)
        root = bwrap(Mode.WORKSPACE_WRITE, namespaces=True, root_identity=True)
        assert root.landlock_handled

    def test_root_may_write_nowhere_in_proc(self):
        rules = dict(bwrap(Mode.WORKSPACE_WRITE, root_identity=True).landlock_allow)
        assert "/proc" not in rules
        assert "/proc" in dict(bwrap(Mode.WORKSPACE_WRITE).landlock_allow)

    def test_the_number_of_mounts_does_not_depend_on_the_tree(self):
        few = bwrap(Mode.WORKSPACE_WRITE)
        assert few.bwrap.count("--ro-bind") < 20

    @pytest.mark.parametrize("abi", [0, 1, 5])
    def test_an_older_kernel_is_a_gap(self, abi: int):
        plan = plan_bwrap(
            mode=Mode.READ_ONLY,
            scratch=True,
            places=PLACES,
            found=FOUND,
            abi=abi,
            root_identity=False,
        )
        assert plan.gaps

    def test_sockets_beyond_those_that_are_covered_are_a_gap(self):
        assert not bwrap(Mode.READ_ONLY).gaps
        crowded = replace(FOUND, more_deputies=True)
        assert "sockets" in bwrap(Mode.READ_ONLY, found=crowded).gaps[0]


class TestUnderLandlock:
    def test_what_is_masked_or_the_daemons_own_cannot_be_read(self):
        closed = (f"{HOME}/.ssh", f"{HOME}/.netrc", STATE, "/run/user/1000/bashd")
        for path, rights in landlock(Mode.READ_ONLY).landlock_allow:
            if rights & (READ_FILE | EXECUTE):
                for mask in closed:
                    assert not is_below(mask, path), (path, mask)

    def test_only_the_roots_and_private_folders_can_be_written(self):
        plan = landlock(Mode.WORKSPACE_WRITE)
        writable = {p for p, rights in plan.landlock_allow if rights & WRITE_FILE}
        assert {p for p in writable if not p.startswith("/dev")} == {
            *(f"{HOME}/work", PLACES.tmp_dir, PLACES.var_tmp_dir)
        }

    def test_a_mask_inside_a_writable_root_is_a_gap(self):
        found = replace(FOUND, roots=(HOME,))
        assert any(
            f"{HOME}/.ssh" in g for g in landlock(Mode.WORKSPACE_WRITE, found).gaps
        )
        assert not any(".ssh" in g for g in landlock(Mode.READ_ONLY, found).gaps)

    def test_granted_sockets_need_all_of_them_opened(self):
        found = replace(FOUND, sockets=("/run/x.sock",), nested=True)
        assert "sockets.unix" in landlock(Mode.READ_ONLY, found).notes[0]
        opened = landlock(Mode.READ_ONLY, found, unix_sockets=True)
        assert not opened.notes
        assert any("Unix sockets" in gap for gap in opened.gaps)


NAME = st.sampled_from(["a", "b", "c", "d"])
PATH = st.lists(NAME, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(masks=st.sets(PATH, max_size=5), path=PATH)
def test_everything_but_the_masks_is_granted(masks: set[str], path: str):
    """On a tree where every folder holds all four names."""

    def names(_folder: str) -> list[tuple[str, bool]]:
        return [(name, False) for name in "abcd"]

    granted = grant_all_but(masks, names)
    deeper = f"{path}/a/a/a/a"
    if is_below_any(deeper, masks):
        assert not is_below_any(deeper, granted)
    else:
        assert is_below_any(deeper, granted)
    for mask in masks:
        assert not is_below_any(mask, granted)


def test_a_policy_without_roots_of_its_own_has_the_workspace_alone():
    assert Policy("p", writable=("/x",)).writable_roots == ()
