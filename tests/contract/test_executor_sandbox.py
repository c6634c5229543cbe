"""K. Sandbox provider and profiles, over a real daemon.

The cases of writes, scratch and own children (C185 to C192) are in tests/kernel with
more of their kind; here is what they leave: which runner, and what if there is none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bashd.client.link import Link
from bashd.core.errors import ConfigError, InvalidParamsError, SandboxUnavailableError
from bashd.core.model import SandboxFacts
from tests.support.accounts import as_user
from tests.support.stations import (
    ALL,
    CONFINING,
    FULL_ACCESS,
    READ_ONLY,
    ROOT_BWRAP,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    USER_BWRAP,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
    station_on,
)

if TYPE_CHECKING:
    from tests.conftest import DaemonFactory
    from tests.support.accounts import Account
    from tests.support.stage import Install

OpenStation = Callable[..., Station]
REFUSAL = (
    'sandbox mode "read-only" is requested but no sandbox backend is usable on this'
    " host; refusing to run the command unconfined. Install bubblewrap or run a"
    " Landlock-enforcing kernel (Linux)"
)


@pytest.fixture
def runner_folder(reachable_tmp: Path, request: pytest.FixtureRequest) -> Path:
    """A folder for a runner of the test's own, and for what it counts."""
    folder = reachable_tmp / f"runner-{abs(hash(request.node.nodeid)):x}"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def broken_runner(folder: Path, act: str) -> Path:
    """Make a bubblewrap that counts its starts and does not work."""
    script = folder / "bwrap"
    script.write_text(f"#!/bin/sh\necho >> {folder}/count\n{act}\n")
    script.chmod(0o755)
    return script


def starts(folder: Path) -> int:
    count = folder / "count"
    return len(count.read_text()) if count.exists() else 0


BROKEN = [
    pytest.param("echo 'bwrap: no permissions' >&2; exit 1", id="fails"),
    pytest.param("exit 0", id="does nothing"),
    pytest.param("exec sleep 600", id="hangs"),
    # As if all were well; what it starts is behind no wall.
    pytest.param(
        'while [ "$1" != -- ]; do shift; done; shift; exec "$@"', id="confines nothing"
    ),
]


@pytest.mark.parametrize("act", BROKEN)
def test_c178_c179_c180_nothing_runs_without_a_runner_that_works(
    make_daemon: DaemonFactory,
    ordinary_user: Account,
    reachable_tmp: Path,
    runner_folder: Path,
    act: str,
):
    script = broken_runner(runner_folder, act)
    daemon = make_daemon(
        account=ordinary_user,
        runner="bwrap",
        settings={"sandbox": {"bwrap_path": str(script), "probe_timeout_ms": 2000}},
    )
    with station_on(daemon, reachable_tmp) as station:
        with pytest.raises(SandboxUnavailableError) as refused:
            station.run("touch ran", READ_ONLY)
        assert refused.value.message.startswith(REFUSAL)
        assert " Runner failure: bwrap: " in refused.value.message
        assert refused.value.code == "SANDBOX_UNAVAILABLE"
        once = starts(runner_folder)
        for mode in CONFINING:
            with pytest.raises(SandboxUnavailableError):
                station.run("touch ran", mode)
            # No id either: it fails at the start.
            with pytest.raises(SandboxUnavailableError):
                station.client.start("touch ran", mode=mode)
        assert starts(runner_folder) == once, "the verdict is kept"
        assert station.client.list() == []
        assert list(station.workspace.iterdir()) == []
        # What needs no walls needs no runner.
        free = station.run("echo there", FULL_ACCESS)
        assert free.stdout.text == "there\n"
        assert free.sandbox is not None
        assert (free.sandbox.denied, free.sandbox.enforcement) == (False, None)
        assert starts(runner_folder) == once
        shown = daemon.cli("run", "--cwd", str(station.workspace), "--", "touch ran")
        assert shown.returncode == 125
        assert REFUSAL in shown.stderr


def test_c178_a_missing_bubblewrap_is_named(
    make_daemon: DaemonFactory, ordinary_user: Account, reachable_tmp: Path
):
    missing = reachable_tmp / "nothing" / "bwrap"
    daemon = make_daemon(
        account=ordinary_user,
        runner="bwrap",
        settings={"sandbox": {"bwrap_path": str(missing)}},
    )
    with station_on(daemon, reachable_tmp) as station:
        with pytest.raises(SandboxUnavailableError, match=str(missing)):
            station.run("touch ran", READ_ONLY)
        assert list(station.workspace.iterdir()) == []


@pytest.mark.parametrize("act", BROKEN)
def test_c181_a_broken_bubblewrap_leaves_landlock(
    make_daemon: DaemonFactory,
    ordinary_user: Account,
    reachable_tmp: Path,
    runner_folder: Path,
    act: str,
):
    script = broken_runner(runner_folder, act)
    # The good rung has to answer within it, too, whatever else the machine does.
    limit_ms = 5_000 if act == "hangs" else 20_000
    daemon = make_daemon(
        account=ordinary_user,
        runner="auto",
        settings={"sandbox": {"bwrap_path": str(script), "probe_timeout_ms": limit_ms}},
    )
    with station_on(daemon, reachable_tmp) as station:
        for mode in CONFINING:
            result = station.run(f"echo x > {station.outside}/x", mode)
            assert result.exit_code == 1
            facts = result.sandbox
            assert facts is not None
            assert (facts.runner, facts.enforcement) == ("landlock", "partial")
        once = starts(runner_folder)
        station.run("true", READ_ONLY)
        assert starts(runner_folder) == once
    assert once > 0


@on(ROOT_BWRAP, USER_BWRAP, SERVED_BWRAP)
def test_bubblewrap_comes_first(station: Station, open_station: OpenStation):
    who = "user" if station.in_user_namespace else "served"
    auto = open_station((who, "auto"))
    facts = auto.run("true", READ_ONLY).sandbox
    assert facts is not None
    assert (facts.runner, facts.enforcement) == ("bwrap", "full")


@on(USER_BWRAP, SERVED_LANDLOCK)
def test_nothing_of_the_callers_chooses_the_runner(station: Station):
    for name in ("bwrap", "bash", "nsenter", "python3"):
        station.make(f"workspace/{name}", "#!/bin/sh\necho planted\n").chmod(0o755)
    path = f"{station.workspace}:/usr/bin:/bin"
    station.make("workspace/bashd.toml", '[sandbox]\nrunner = "none"\n')
    session = station.open(
        environ=station.environ | {"PATH": path, "BASHD_RUNNER": "none"}
    )
    result = session.run("echo real", mode=READ_ONLY)
    assert result.stdout.text == "real\n"
    assert result.sandbox is not None
    assert result.sandbox.runner == station.runner


@on(*ALL)
def test_c185_c186_c187_facts_and_their_effects(station: Station):
    home = f"{station.outside}/home-canary"
    refused = station.run(f"echo hi > {home}", READ_ONLY)
    assert refused.exit_code == 1
    assert not Path(home).exists()
    facts = refused.sandbox
    assert facts is not None
    assert (str(facts.mode), facts.denied, facts.runner_failed) == (
        READ_ONLY,
        True,
        False,
    )
    listed = station.run("ls / > /dev/null && echo ok", READ_ONLY)
    assert (listed.exit_code, listed.stdout.text) == (0, "ok\n")
    assert listed.sandbox is not None
    assert not listed.sandbox.denied
    assert station.run("echo hi > here").exit_code == 0
    beside = station.run(f"echo hi > {home}")
    assert beside.exit_code == 1
    assert not Path(home).exists()
    assert (station.workspace / "here").read_text() == "hi\n"
    own_child = "sleep 600 & kill $! && wait $!; echo $?"
    assert station.text(own_child, READ_ONLY) == "143\n"


@on(*ALL)
def test_c195_two_sessions_have_two_roots(station: Station):
    roots = [station.give(station.folder / name) for name in ("one", "two")]
    sessions = [station.open(root, mode=WORKSPACE_WRITE) for root in roots]
    for own, other, session in ((*roots, sessions[0]), (*roots[::-1], sessions[1])):
        assert session.run("pwd; echo x > own").stdout.text == f"{own}\n"
        assert session.run(f"echo x > {other}/foreign").exit_code == 1
        assert [path.name for path in own.iterdir()] == ["own"]


@on(USER_BWRAP, SERVED_LANDLOCK)
def test_c196_full_access_carries_no_claim(station: Station):
    result = station.run("true", FULL_ACCESS)
    assert result.sandbox is not None
    assert result.sandbox.mode == FULL_ACCESS
    assert result.sandbox == SandboxFacts(mode=result.sandbox.mode)
    failed = station.run("echo 'Read-only file system' >&2; exit 1", FULL_ACCESS)
    assert failed.sandbox == result.sandbox
    task = station.client.start("exit 1", mode=FULL_ACCESS)
    assert station.client.wait(task.task_id).sandbox is None


@on(USER_BWRAP, SERVED_LANDLOCK)
def test_overlapping_tasks_keep_their_own_facts(station: Station):
    # Both run until the other has started.
    together = "touch $TMPDIR/{own}; until test -e $TMPDIR/{other}; do sleep 0.02; done"
    tasks = {
        mode: station.client.start(
            f"{together.format(own=mode, other=other)}; echo x > refused || exit 1",
            mode=mode,
        )
        for mode, other in zip(CONFINING, reversed(CONFINING), strict=True)
    }
    settled = {mode: station.client.wait(task.task_id) for mode, task in tasks.items()}
    for mode, task in settled.items():
        assert task.sandbox is not None
        assert task.sandbox.mode == mode
        assert task.sandbox.denied is (mode == READ_ONLY)
        assert task.exit_code == (1 if mode == READ_ONLY else 0)


@pytest.mark.parametrize("mode", CONFINING)
def test_c198_a_configured_root_that_is_missing(
    make_daemon: DaemonFactory,
    reachable_tmp: Path,
    mode: str,
    request: pytest.FixtureRequest,
):
    account = request.getfixturevalue(
        "root_account" if os.geteuid() == 0 else "ordinary_user"
    )
    missing = reachable_tmp / "missing-root"
    daemon = make_daemon(
        account=account,
        settings={"sandbox": {"workspace_root": str(missing), "mode": mode}},
    )
    canary = daemon.folder / "canary"
    link = Link.reach(str(daemon.socket), autostart=False)
    try:
        with pytest.raises(SandboxUnavailableError) as refused:
            link.call("exec.run", {"command": f"touch {canary}", "workdir": "/"})
        assert " Runner failure: " in refused.value.message
        assert str(missing) in refused.value.message
        assert not canary.exists()
        missing.mkdir()
        made = f"echo x > {missing}/made || true"
        answer = link.call("exec.run", {"command": made, "workdir": "/"})
        assert answer["exit_code"] == 0
        assert (missing / "made").exists() is (mode == WORKSPACE_WRITE)
    finally:
        link.close()
        (missing / "made").unlink(missing_ok=True)
        missing.rmdir()


@on(USER_BWRAP, SERVED_BWRAP, USER_LANDLOCK)
def test_a_policy_that_cannot_be_read_is_named_and_nothing_runs(station: Station):
    policies = station.folder / "config" / "bashd" / "policies"
    for name, text, reason in (
        ("closed", 'mode = "read-only"\n', "cannot be read"),
        ("unknown-key", 'mode = "read-only"\nmoed = 1\n', "moed"),
        ("wrong-type", 'mode = "read-only"\nscratch = "yes"\n', "scratch"),
        ("no-toml", "mode = \n", "no-toml.toml"),
    ):
        path = station.make(f"config/bashd/policies/{name}.toml", text)
        if name == "closed":
            path.chmod(0)
        environ = station.environ | {"XDG_CONFIG_HOME": str(station.folder / "config")}
        session = station.open(environ=environ)
        with pytest.raises(ConfigError) as wrong:
            session.run("touch ran", policy=name)
        assert f"{policies}/{name}.toml" in wrong.value.message
        assert reason in wrong.value.message
    with pytest.raises(InvalidParamsError, match="nowhere"):
        station.client.run("touch ran", policy="nowhere")
    assert list(station.workspace.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[sandbox]\nprobe_timeout_ms = 0\n", "sandbox.probe_timeout_ms"),
        ("[executor]\ngrace_ms = 2147483648\n", "executor.grace_ms"),
        ('[sandbox]\nmode = "readonly"\n', "sandbox.mode"),
        ("[sandbox]\nrunnner = 1\n", "runnner"),
        ("[nonsense]\n", "nonsense"),
        ("not toml", "bashd.toml"),
    ],
)
def test_a_bad_configuration_stops_the_start(
    reachable_tmp: Path, install: Install, ordinary_user: Account, text: str, named: str
):
    config = reachable_tmp / f"bad-{abs(hash(text)):x}" / "bashd.toml"
    config.parent.mkdir()
    config.write_text(text)
    done = as_user(
        ordinary_user,
        [
            *(install.python, "-m", "bashd.daemon", "--config", str(config)),
            *("--socket", str(ordinary_user.home / "no.sock")),
        ],
    )
    assert done.returncode == 2
    assert str(config) in done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
