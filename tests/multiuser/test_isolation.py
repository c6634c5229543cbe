"""Two users and root share one daemon and nothing else.

The goal of every attack here: see, read, end, steer or name something of another
user's, from inside a cell or from outside. Each is first shown to work on something of
the attacker's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.accounts import as_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.multiuser.conftest import Crowd
    from tests.support.daemons import RunningDaemon

pytestmark = pytest.mark.slow

SECRET = "only-for-its-owner"


def run(caller: RunningDaemon, command: str, **options: Any) -> tuple[int | None, str]:
    """Run a command in workspace-write; returns its exit code and output."""
    cwd = options.pop("cwd", None) or home(caller)
    result = caller.run(command, cwd=cwd, mode="workspace-write", **options)
    assert "error" not in result, result
    return result["exit_code"], result["stdout"]["text"] + result["stderr"]["text"]


def home(caller: RunningDaemon) -> Path:
    """Return a workspace in the caller's home (root's lies in the test's folder)."""
    known = [path for path in caller.workspaces if caller.caller.name in str(path)]
    if known:
        return known[0]
    return caller.make_workspace(f"work-{caller.caller.name}")


def open_session(caller: RunningDaemon) -> str:
    """Open a session; returns its id."""
    done = caller.cli("session", "open", "--cwd", str(home(caller)))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def start_task(caller: RunningDaemon, command: str, *options: str) -> str:
    """Start a background task; returns its id."""
    done = caller.cli(
        *("run", "--background", "--mode", "workspace-write"),
        *("--cwd", str(home(caller)), *options, "--", command),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[0]


def tasks(caller: RunningDaemon) -> dict[str, dict[str, Any]]:
    """Return the caller's tasks by id."""
    done = caller.cli("ps", "--all", "--json")
    return {task["task_id"]: task for task in json.loads(done.stdout)["tasks"]}


@pytest.fixture
def bobs_task(crowd: Crowd) -> Iterator[tuple[str, int]]:
    """A task of bob's that waits, and a pid of it as the host numbers it."""
    marker = f"1234{os.urandom(4).hex()}"
    task = start_task(crowd.bob, f"echo begun; exec -a {marker} sleep 600")
    while "begun" not in crowd.bob.cli("logs", task).stdout:
        pass
    yield task, _pid_of(marker)
    crowd.bob.cli("kill", task)


def _pid_of(marker: str) -> int:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] == marker.encode():
                return int(folder.name)
    raise AssertionError(marker)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


# -- sessions and tasks ---------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("session", "show", "ID"),
        ("session", "mode", "ID", "danger-full-access"),
        ("session", "approval", "ID", "never"),
        ("session", "close", "ID"),
        ("run", "--session", "ID", "--", "true"),
        ("run", "--background", "--session", "ID", "--", "true"),
        ("ps", "--session", "ID"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_another_users_session_is_as_unknown_as_one_that_never_was(
    crowd: Crowd, words: tuple[str, ...]
):
    foreign, own = open_session(crowd.bob), open_session(crowd.alice)
    never = "s-" + "0" * (len(foreign) - 2)

    def say(session: str) -> tuple[int, str]:
        done = crowd.alice.cli(*(session if w == "ID" else w for w in words))
        said = (done.stdout + done.stderr).replace(session, "ID")
        return done.returncode, said

    assert say(own)[0] == 0
    refused = say(foreign)
    assert refused[0] == 125
    assert refused == say(never)
    shown = crowd.bob.cli("session", "show", foreign, "--json")
    assert json.loads(shown.stdout)["mode"] != "danger-full-access"


def test_a_task_id_names_ones_own_task_and_never_anothers(
    crowd: Crowd, bobs_task: tuple[str, int]
):
    task, pid = bobs_task
    mine = {start_task(crowd.alice, "echo mine") for _ in range(2)}
    guesses = {f"bash-{number}" for number in range(1, 60)} | {task}
    for guess in sorted(guesses - tasks(crowd.alice).keys())[:8]:
        for words in (("logs", guess), ("kill", guess), ("wait", guess)):
            assert crowd.alice.cli(*words).returncode == 125
    for own in mine:
        assert crowd.alice.cli("logs", own).stdout in ("", "mine\n")
    assert alive(pid)
    assert tasks(crowd.bob)[task]["status"] == "running"


def test_lists_and_counts_are_of_ones_own(crowd: Crowd, bobs_task: tuple[str, int]):
    assert "sleep 600" not in crowd.alice.cli("ps", "--all").stdout
    foreign = open_session(crowd.bob)
    assert foreign in crowd.bob.cli("session", "list").stdout
    assert foreign not in crowd.alice.cli("session", "list").stdout
    assert foreign not in crowd.root.cli("session", "list").stdout
    before = json.loads(crowd.alice.cli("status", "--json").stdout)
    start_task(crowd.bob, "sleep 1")
    after = json.loads(crowd.alice.cli("status", "--json").stdout)
    assert after["tasks"] == before["tasks"]


# -- processes ------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_another_users_process_is_neither_ended_nor_read(
    crowd: Crowd, bobs_task: tuple[str, int], where: str
):
    _, pid = bobs_task
    tries = (
        f"kill -KILL {pid}; kill -STOP {pid}; cat /proc/{pid}/environ /proc/{pid}/maps"
        f" >loot; ls /proc/{pid}/fd >>loot; ls /proc/{pid}/root/ >>loot; true"
    )
    own = "sleep 9 & kill -KILL $!; wait $! || echo ended"
    assert "ended" in run(crowd.alice, own)[1]
    if where == "inside":
        run(crowd.alice, tries)
        loot = (home(crowd.alice) / "loot").read_text()
    else:
        argv = ["bash", "-c", f"{tries}; cat loot"]
        loot = as_user(crowd.alice.caller, argv).stdout
    assert loot == ""
    assert alive(pid)
    assert "State:\tT" not in Path(f"/proc/{pid}/status").read_text()


def test_killing_everything_one_may_kill_reaches_no_other_user(
    crowd: Crowd, bobs_task: tuple[str, int]
):
    _, pid = bobs_task
    crowd.alice.cli(
        *("run", "--mode", "workspace-write", "--cwd", str(home(crowd.alice))),
        *("--", "kill -KILL -1; true"),
    )
    assert alive(pid)
    assert run(crowd.alice, "echo still served") == (0, "still served\n")


# -- files ----------------------------------------------------------------------------


def test_scratch_space_is_each_users_own(crowd: Crowd):
    run(crowd.bob, f"echo {SECRET} >$TMPDIR/canary; chmod -R 777 $TMPDIR")
    where = run(crowd.bob, "echo $TMPDIR; stat -c %U $TMPDIR")[1].split()
    assert where[1] == crowd.bob.caller.name
    found = list(crowd.alice.state_dir.rglob("canary"))
    assert found
    for place in (f"{where[0]}/canary", *map(str, found)):
        for output in (
            run(crowd.alice, f"cat {place} {Path(place).parent}/*")[1],
            as_user(crowd.alice.caller, ["cat", place]).stdout,
        ):
            assert SECRET not in output


def test_output_kept_for_one_user_is_closed_to_others(crowd: Crowd):
    task = start_task(crowd.bob, f"for i in $(seq 9000); do echo {SECRET}; done")
    crowd.bob.cli("wait", task)
    files = [
        path
        for path in crowd.bob.state_dir.rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert files
    for path in files:
        inside = run(crowd.alice, f"cat {path}; ls {path.parent}")[1]
        outside = as_user(crowd.alice.caller, ["cat", str(path)])
        assert SECRET not in inside + outside.stdout
        assert path.name not in inside.replace(str(path), "")


def test_the_state_folder_lists_nothing_to_users(crowd: Crowd):
    for folder in (crowd.alice.state_dir, crowd.alice.state_dir / "sessions"):
        done = as_user(crowd.alice.caller, ["ls", "-A", str(folder)])
        assert done.stdout == ""
        assert done.returncode != 0


@pytest.fixture
def common(reachable_tmp: Path) -> Path:
    """A folder in which everybody may make files, as /tmp is."""
    folder = reachable_tmp / f"common-{os.urandom(4).hex()}"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def roots_own(reachable_tmp: Path) -> Path:
    """A folder of root's that is closed to everybody else, with a secret in it."""
    folder = reachable_tmp / f"closed-{os.urandom(4).hex()}"
    folder.mkdir(mode=0o700)
    (folder / "secret").write_text(SECRET)
    return folder


def test_a_link_to_a_closed_folder_is_no_workspace(
    crowd: Crowd, common: Path, roots_own: Path
):
    as_user(crowd.alice.caller, ["ln", "-s", str(roots_own), str(common / "link")])
    words = ("run", "--mode", "workspace-write", "--cwd", str(common / "link"), "--")
    refused = crowd.alice.cli(*words, "cat secret; touch mark")
    assert refused.returncode == 125
    assert SECRET not in refused.stdout + refused.stderr
    assert not (roots_own / "mark").exists()
    # Root may go there, so it was the user's permissions that decided.
    assert SECRET in crowd.root.cli(*words, "cat secret").stdout


def test_a_link_that_changes_while_the_daemon_looks_opens_nothing(
    crowd: Crowd, common: Path, roots_own: Path
):
    mine = home(crowd.alice)
    link = common / "flipping"
    stop = threading.Event()
    flipper = subprocess.Popen(
        crowd.alice.argv_as_caller(
            [
                *("bash", "-c"),
                f"while :; do ln -sfn {mine} {link}; ln -sfn {roots_own} {link}; done",
            ]
        )
    )
    try:
        while not link.is_symlink():
            stop.wait(0.01)
        said = [
            crowd.alice.cli(
                *("run", "--mode", "workspace-write", "--cwd", str(link), "--"),
                "cat secret; touch mark; pwd",
            )
            for _ in range(12)
        ]
    finally:
        flipper.kill()
        flipper.wait()
    assert all(SECRET not in done.stdout + done.stderr for done in said)
    assert not (roots_own / "mark").exists()


def test_a_shared_workspace_is_shared_by_its_permissions_alone(
    crowd: Crowd, common: Path
):
    run(
        crowd.bob,
        f"umask 077; echo {SECRET} >closed; umask 022; echo ok >open",
        cwd=common,
    )
    assert run(crowd.alice, "cat open closed", cwd=common)[1].startswith("ok\n")
    assert SECRET not in run(crowd.alice, "cat closed", cwd=common)[1]
    assert run(crowd.alice, "rm -f open; mv open x; echo no >open", cwd=common)[0] != 0
    assert (common / "open").read_text() == "ok\n"


def test_a_link_where_another_will_write_gains_nothing(crowd: Crowd, common: Path):
    """A user plants links under names another's command will use; it writes as itself."""
    victim = home(crowd.alice) / "precious"
    as_user(crowd.alice.caller, ["bash", "-c", f"echo precious >{victim}"])
    as_user(crowd.bob.caller, ["ln", "-s", str(victim), str(common / "result")])
    run(crowd.bob, "echo overwritten >result", cwd=common)
    assert victim.read_text() == "precious\n"


# -- all at once ----------------------------------------------------------------------


def test_under_load_nobody_gets_anothers_identity_output_or_folder(crowd: Crowd):
    callers = (crowd.alice, crowd.bob, crowd.root)
    places = {caller.caller.uid: home(caller) for caller in callers}

    def one(number: int) -> None:
        caller = callers[number % 3]
        uid, token = caller.caller.uid, f"token-{number}-{os.urandom(8).hex()}"
        command = (
            f"echo {token} >{token}; cat {token}; id -u; stat -c %u {token} $TMPDIR;"
            f" pwd; sleep 0.0{number % 7}; echo {token} >&2; exit {number % 90}"
        )
        place = places[uid]
        result = caller.run(command, cwd=place, mode="workspace-write")
        uids = f"{uid}\n" * 3
        assert result["stdout"]["text"] == f"{token}\n{uids}{place}\n"
        assert result["stderr"]["text"] == f"{token}\n"
        assert result["exit_code"] == number % 90

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(one, range(36)))
    for caller in callers:
        owners = {
            path.stat().st_uid for path in places[caller.caller.uid].glob("token*")
        }
        assert owners == {caller.caller.uid}


@dataclass
class Stake:
    """What one user has to lose while others attack."""

    owner: RunningDaemon
    session: str
    task: str
    pid: int

    @classmethod
    def of(cls, owner: RunningDaemon) -> Stake:
        """Give *owner* a secret, a session and a task."""
        run(owner, f"umask 077; echo {SECRET} >secret")
        marker = f"77{os.urandom(5).hex()}"
        task = start_task(owner, f"echo on; exec -a {marker} sleep 600")
        while "on" not in owner.cli("logs", task).stdout:
            pass
        return cls(owner, open_session(owner), task, _pid_of(marker))

    def is_whole(self) -> bool:
        """Whether nothing of it was reached."""
        shown = self.owner.cli("session", "show", self.session, "--json")
        running = tasks(self.owner)[self.task]["status"] == "running"
        mode = json.loads(shown.stdout)["mode"]
        return alive(self.pid) and running and mode != "danger-full-access"


def attack_session(attacker: RunningDaemon, victim: Stake) -> None:
    for words in (
        ("session", "close", victim.session),
        ("session", "mode", victim.session, "danger-full-access"),
        ("run", "--session", victim.session, "--", "cat secret"),
    ):
        assert attacker.cli(*words).returncode == 125


def attack_task(attacker: RunningDaemon, victim: Stake) -> None:
    only_theirs = tasks(victim.owner).keys() - tasks(attacker).keys()
    for guess in sorted(only_theirs)[:2] or ["bash-9999"]:
        assert attacker.cli("kill", guess).returncode == 125
        assert attacker.cli("logs", guess).returncode == 125


def attack_files(attacker: RunningDaemon, victim: Stake, common: Path) -> None:
    secret, link = home(victim.owner) / "secret", common / os.urandom(4).hex()
    as_user(attacker.caller, ["ln", "-s", str(secret), str(link)])
    command = f"cat {link} {secret} /proc/{victim.pid}/environ; kill -9 {victim.pid}"
    said = attacker.cli("run", "--cwd", str(common), "--", command)
    assert said.returncode != 0
    outside = as_user(attacker.caller, ["bash", "-c", command])
    assert SECRET not in said.stdout + said.stderr + outside.stdout


def attack_root(attacker: RunningDaemon, common: Path, roots_own: Path) -> None:
    link = common / os.urandom(4).hex()
    as_user(attacker.caller, ["ln", "-s", str(roots_own), str(link)])
    refused = attacker.cli("run", "--cwd", str(link), "--", "cat secret")
    assert refused.returncode == 125
    assert SECRET not in refused.stdout + refused.stderr


def test_under_load_every_attack_fails_as_it_does_alone(
    crowd: Crowd, common: Path, roots_own: Path
):
    """Both users work, and each attacks the other and root, all at once."""
    stakes = [Stake.of(caller) for caller in crowd.users]
    for _ in range(3):  # so that bob has numbers that alice has not
        start_task(crowd.bob, "true")

    def work(number: int) -> None:
        caller = crowd.users[number % 2]
        expected = 0, f"{SECRET}\n{number}\n"
        assert run(caller, f"cat secret; echo {number}") == expected

    def attack(number: int) -> None:
        attacker, victim = crowd.users[number % 2], stakes[1 - number % 2]
        attack_session(attacker, victim)
        attack_task(attacker, victim)
        attack_files(attacker, victim, common)
        attack_root(attacker, common, roots_own)

    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(work, number) for number in range(12)]
        jobs += [pool.submit(attack, number) for number in range(2)]
        for job in jobs:
            job.result()
    for stake in stakes:
        assert stake.is_whole()
        stake.owner.cli("kill", stake.task)
