"""Removing trees that were built to resist it; canaries outside must survive."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bashd.daemon.removal import remove_tree

AS_ROOT = os.geteuid() == 0
ROOT = Path(__file__).parents[3]
NOBODY = 65534


@pytest.fixture
def tree(tmp_path):
    made = tmp_path / "tree"
    made.mkdir()
    return made


@pytest.fixture
def canary(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_text("alive")
    yield outside
    assert (outside / "canary").read_text() == "alive"


def build_deep(top: Path, levels: int) -> None:
    fd = os.open(top, os.O_RDONLY)
    for level in range(levels):
        os.mkdir("d", dir_fd=fd)
        if level % 100 == 0:
            os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


@pytest.mark.slow
def test_four_thousand_levels_go_with_few_descriptors(tree):
    build_deep(tree, 4000)
    limit = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (16, 16));"
    code = (
        f"{limit} from bashd.daemon.removal import *; print(remove_tree({str(tree)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert "complete=True, removed=4041" in done.stdout
    assert not tree.exists()


def test_links_are_removed_and_not_followed(tree, canary):
    (tree / "to-folder").symlink_to(canary)
    (tree / "to-file").symlink_to(canary / "canary")
    (tree / "sub").mkdir()
    (tree / "sub" / "up").symlink_to("../..")
    assert remove_tree(str(tree)).complete
    assert not tree.exists()


def test_a_link_in_place_of_the_tree_is_left_alone(tmp_path, canary):
    (tmp_path / "link").symlink_to(canary)
    removal = remove_tree(str(tmp_path / "link"))
    assert not removal.complete
    assert removal.errors


def test_special_files_and_odd_names_go(tree):
    os.mkfifo(tree / "fifo")
    (tree / "new\nline").mkdir()
    Path(os.fsdecode(os.fsencode(tree) + b"/\xff\xfe")).mkdir()
    (tree / "-rf").touch()
    assert remove_tree(str(tree)).complete
    assert not tree.exists()


def test_a_missing_tree_is_complete(tmp_path):
    assert remove_tree(str(tmp_path / "no" / "such")).complete
    assert remove_tree(str(tmp_path / "none")).complete


def test_of_a_descriptor_only_the_contents_go(tree):
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "f").touch()
    fd = os.open(tree, os.O_RDONLY)
    removal = remove_tree(fd)
    os.close(fd)
    assert (removal.complete, removal.removed) == (True, 3)
    assert list(tree.iterdir()) == []


def test_more_folders_than_are_remembered_at_once_go(tree):
    for number in range(1500):
        (tree / f"d{number}").mkdir()
    assert remove_tree(str(tree)).removed == 1501


def test_no_time_leaves_a_tree_and_says_so(tree):
    (tree / "f").touch()
    removal = remove_tree(str(tree), max_seconds=0)
    assert (removal.complete, removal.errors) == (False, ("the time allowed was over",))


@pytest.mark.skipif(not AS_ROOT, reason="needs another user's id")
def test_folders_that_shut_their_owner_out_are_opened_up(tmp_path, canary):
    tree = tmp_path / "tree"
    for path in (tree, tree / "shut", tree / "shut" / "deep", tree / "listed"):
        path.mkdir()
        (path / "f").touch()
    (tree / "shut" / "link").symlink_to(canary)
    for path in sorted(tree.rglob("*"), reverse=True):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        if path.is_dir():
            path.chmod(0o000 if path.name != "listed" else 0o444)
    os.chown(tree, NOBODY, NOBODY)
    assert "complete=True" in as_nobody(tree)
    assert list(tree.iterdir()) == []


def as_nobody(tree: Path) -> str:
    """Empty *tree* as another user, who is handed its descriptor."""
    fd = os.open(tree, os.O_RDONLY)
    become = (
        "import os; os.setgroups([]); "
        f"os.setresgid(*[{NOBODY}] * 3); os.setresuid(*[{NOBODY}] * 3)"
    )
    code = f"from bashd.daemon.removal import *; {become}; print(remove_tree({fd}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        pass_fds=[fd],
    )
    os.close(fd)
    return done.stdout


@pytest.mark.skipif(not AS_ROOT, reason="needs another user's id")
def test_what_may_not_be_removed_is_named_and_costs_nothing_else(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("a", "z"):
        (tree / name).mkdir()
        os.chown(tree / name, NOBODY, NOBODY)
    (tree / "m").mkdir()
    (tree / "m" / "roots").touch()
    os.chown(tree, NOBODY, NOBODY)
    done = as_nobody(tree)
    assert "roots: Permission denied" in done
    assert [path.name for path in tree.iterdir()] == ["m"]


MOUNTED = """
mkdir "$1/disk" "$1/bind" &&
mount -t tmpfs -o size=1m none "$1/disk" && touch "$1/disk/canary" &&
mount --bind "$2" "$1/bind" &&
"$3" -c 'import sys; from bashd.daemon.removal import *; print(remove_tree(sys.argv[1]))' "$1" &&
test -e "$1/disk/canary" && test -e "$1/bind/canary"
"""


@pytest.mark.slow
def test_mounts_are_not_crossed_not_even_binds_of_the_same_disk(tree, canary):
    (tree / "f").touch()
    unshare = ["unshare", "--mount"] + ([] if AS_ROOT else ["--map-root-user"])
    if subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("no private mount namespace here")
    argv = [*unshare, "sh", "-c", MOUNTED, "sh", tree, canary, sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("another mount") == 2
    assert sorted(path.name for path in tree.iterdir()) == ["bind", "disk"]


@pytest.fixture
def eager_threads():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("_round", range(6))
def test_a_tree_that_is_moved_about_meanwhile_costs_nothing_outside(
    tree, canary, _round
):
    # Without the look at where ".." leads, most rounds lose the canary.
    for number in range(40):
        (tree / f"a{number}" / "b" / "c").mkdir(parents=True)
        for name in "vwxyz":
            (tree / f"a{number}" / "b" / "c" / name).touch()
    aside = canary / "aside" / "x"
    aside.parent.mkdir()
    stop = threading.Event()

    def move_about() -> None:
        number = 0
        while not stop.is_set():
            number = (number + 1) % 40
            inside = tree / f"a{number}" / "b"
            for here, there in ((inside, aside), (aside, inside)):
                with contextlib.suppress(OSError):
                    os.rename(here, there)  # noqa: PTH104 - as fast as can be

    mover = threading.Thread(target=move_about)
    mover.start()
    remove_tree(str(tree), max_seconds=2)
    stop.set()
    mover.join()
    assert remove_tree(str(tree)).complete
    assert not tree.exists()
    assert aside.parent.is_dir()


def test_a_tree_that_keeps_growing_is_left_in_time(tree):
    stop = threading.Event()

    def grow() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                (tree / f"n{number}").touch()
            except OSError:
                return

    grower = threading.Thread(target=grow)
    grower.start()
    started = time.monotonic()
    remove_tree(str(tree), max_seconds=0.2)
    took = time.monotonic() - started
    stop.set()
    grower.join()
    assert took < 2


names = st.sampled_from(["a", "b", "c"])
paths = st.lists(names, min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(paths, st.sampled_from("fdl")), max_size=20))
def test_any_tree_goes_entirely(entries):
    with tempfile.TemporaryDirectory() as root:
        tree = Path(root) / "tree"
        tree.mkdir()
        for parts, kind in entries:
            path = tree.joinpath(*parts)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                match kind:
                    case "f":
                        path.touch()
                    case "d":
                        path.mkdir()
                    case _:
                        path.symlink_to(root)
            except OSError:
                continue
        assert remove_tree(str(tree)).complete
        assert not tree.exists()
