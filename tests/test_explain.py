"""``bashd explain`` and the hints of a failure, end to end on every combination."""

from __future__ import annotations

import json
import os
import secrets
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bashd.core.model import RunResult
from tests.conftest import DaemonFactory
from tests.support.accounts import Account
from tests.support.daemons import RunningDaemon
from tests.support.stations import (
    READ_ONLY,
    ROOT_LANDLOCK,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    USER_BWRAP,
    USER_LANDLOCK,
    WORKSPACE_WRITE,
    Station,
    on,
)

ORDINARY = (SERVED_BWRAP, SERVED_LANDLOCK, USER_BWRAP, USER_LANDLOCK)
"""Where the caller is an ordinary user, whose home a test may write to."""


def explain(daemon: RunningDaemon, *words: str) -> dict[str, Any]:
    done = daemon.cli("explain", "--json", *words)
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def policy_for(daemon: RunningDaemon, run_id: str) -> str:
    done = daemon.cli("explain", "--policy", run_id)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture
def saved(station: Station) -> Iterator[Path]:
    """Folder of the caller's own policies."""
    folder = station.caller.home / ".config" / "bashd" / "policies"
    made = [p for p in (*reversed(folder.parents), folder) if not p.exists()]
    for path in made:
        path.mkdir()
        os.chown(path, station.caller.uid, station.caller.gid)
    name = folder / f"explained-{secrets.token_hex(4)}.toml"
    yield name
    name.unlink(missing_ok=True)
    for path in reversed(made):
        path.rmdir()


def test_a_refusal_comes_with_its_rule_and_the_line_that_allows_it(station: Station):
    result = station.run("touch note", READ_ONLY)
    found = explain(station.daemon, result.run_id)
    assert found["run_id"] == result.run_id
    assert found["session_id"] == station.client.session.session_id
    assert (found["command"], found["exit_code"]) == ("touch note", 1)
    (refusal,) = found["refusals"]
    assert refusal["path"] == f"{station.workspace}/note"
    assert refusal["operation"] == "create"
    assert refusal["rule"] == 'mode = "read-only"'
    assert refusal["sources"][0].endswith("/read-only.toml")
    assert refusal["allow"] == 'mode = "workspace-write"'


@on(*ORDINARY)
def test_the_policy_it_writes_allows_exactly_what_was_refused(
    station: Station, saved: Path
):
    beside = station.give(station.folder / "beside")
    other = station.outside
    command = f"touch {beside}/x"
    result = station.run(command)
    assert result.exit_code == 1
    text = policy_for(station.daemon, result.run_id)
    saved.write_text(text)
    checked = station.daemon.cli("policy", "check", str(saved))
    assert checked.returncode == 0, checked
    assert tomllib.loads(text)["writable"] == [str(beside)]
    allowed = station.client.run(command, policy=saved.stem)
    assert allowed.exit_code == 0, allowed
    assert (beside / "x").exists()
    still = station.client.run(f"touch {other}/x", policy=saved.stem)
    assert still.exit_code == 1
    assert not (other / "x").exists()


@on(*ORDINARY)
def test_a_masked_file_is_explained_and_can_be_opened(station: Station, saved: Path):
    netrc = station.caller.home / ".netrc"
    netrc.write_text("canary\n")
    os.chown(netrc, station.caller.uid, station.caller.gid)
    netrc.chmod(0o600)
    try:
        result = station.run("cat ~/.netrc")
        assert "canary" not in result.stdout.text
        (refusal,) = explain(station.daemon, result.run_id)["refusals"]
        assert (refusal["path"], refusal["rule"]) == (str(netrc), "masked: ~/.netrc")
        saved.write_text(policy_for(station.daemon, result.run_id))
        opened = station.client.run("cat ~/.netrc", policy=saved.stem)
        assert opened.stdout.text == "canary\n"
    finally:
        netrc.unlink()


def test_without_an_id_it_is_the_command_that_settled_last(station: Station):
    station.run("touch a", READ_ONLY)
    last = station.run("touch b", READ_ONLY)
    assert explain(station.daemon)["run_id"] == last.run_id
    text = station.daemon.cli("explain").stdout
    assert f"refused: create {station.workspace}/b" in text
    assert 'allow: mode = "workspace-write"' in text


def test_a_command_that_was_refused_nothing_needs_no_policy(station: Station):
    result = station.run("true")
    found = explain(station.daemon, result.run_id)
    assert (found["verdict"], found["refusals"]) == ("none", [])
    done = station.daemon.cli("explain", "--policy", result.run_id)
    assert (done.returncode, done.stdout.count("\n")) == (1, 1)
    assert "nothing was refused" in done.stdout


def test_a_task_is_explained_by_its_id_also_while_it_runs(station: Station):
    task = station.client.start("touch x; sleep 600.138; exit 3", mode=READ_ONLY)
    found = explain(station.daemon, task.task_id)
    assert (found["task_id"], found["running"]) == (task.task_id, True)
    station.client.kill(task.task_id)
    station.client.wait(task.task_id)
    found = explain(station.daemon, task.task_id)
    assert (found["run_id"], found["running"]) == (task.run_id, False)


@on(ROOT_LANDLOCK)
def test_what_is_not_known_or_not_ones_own_is_unknown(
    station: Station, make_daemon: DaemonFactory, ordinary_user: Account
):
    result = station.run("touch x", READ_ONLY)
    for wanted in ("nosuch", "bash-999999"):
        done = station.daemon.cli("explain", wanted)
        assert done.returncode == 125
        assert "no run or task of yours" in done.stderr
    daemon = make_daemon(account=station.daemon.account, caller=ordinary_user)
    assert daemon.cli("explain").returncode == 125
    assert daemon.cli("explain", result.run_id).returncode == 125


@on(ROOT_LANDLOCK, SERVED_BWRAP)
def test_the_facts_survive_the_daemon(
    station: Station, make_daemon: DaemonFactory
) -> None:
    shared = station.daemon
    daemon = make_daemon(
        account=shared.account, caller=shared.caller, runner=shared.runner
    )
    workspace = daemon.make_workspace()
    result = daemon.run("touch note", cwd=workspace, mode="read-only")
    before = explain(daemon)
    daemon.kill()
    daemon.start_again()
    assert explain(daemon, result["run_id"]) == before
    assert explain(daemon)["run_id"] == result["run_id"]


# -- hints ---------------------------------------------------------------------------------


def hints(result: RunResult) -> str:
    assert result.sandbox is not None
    return "\n".join(result.sandbox.hints)


OFFLINE = 'mode = "workspace-write"\nnetwork = "none"\n'


@on(*ORDINARY)
def test_a_failure_for_want_of_network_says_so(station: Station, saved: Path):
    saved.write_text(OFFLINE)
    program = "import socket; socket.getaddrinfo('example.invalid', 443)"
    command = f'python3 -c "{program}"'
    result = station.client.run(command, policy=saved.stem)
    assert result.exit_code == 1
    assert 'network blocked by sandbox: its policy says network = "none"' in hints(
        result
    )
    assert result.sandbox is not None
    assert result.sandbox.denied is False
    (refusal,) = explain(station.daemon, result.run_id)["refusals"]
    assert (refusal["rule"], refusal["allow"]) == (
        'network = "none"',
        'network = "host"',
    )
    shown = station.daemon.cli(
        *("run", "--policy", saved.stem, "--cwd", str(station.workspace), "--", command)
    )
    assert "[sandbox: network blocked by sandbox" in shown.stderr
    assert shown.stderr.rstrip().endswith("[exit code: 1]")


def test_a_failed_login_names_the_credentials_that_were_removed(station: Station):
    environ = station.environ | {"ACME_TOKEN": "canary", "OTHER_KEY": "canary"}
    session = station.open(environ=environ)
    command = "echo 'fatal: Authentication failed for acme' >&2; exit 128"
    result = session.run(command, mode=WORKSPACE_WRITE)
    assert "removed from its environment: ACME_TOKEN, OTHER_KEY" in hints(result)
    assert "canary" not in repr(result)
    assert hints(session.run("exit 128")) == ""


@pytest.fixture
def host_socket() -> Iterator[str]:
    """A service's socket in the host's /run."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a socket in /run")
    path = f"/run/bashd-test-{secrets.token_hex(4)}.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        Path(path).chmod(0o777)
        listener.listen()
        yield path
    Path(path).unlink()


def test_a_walled_socket_is_no_service_that_is_down(station: Station, host_socket: str):
    program = f"import socket; socket.socket(1).connect('/var{host_socket}')"
    result = station.run(f'python3 -c "{program}"')
    assert result.exit_code == 1
    assert result.sandbox is not None
    assert result.sandbox.denied is True, result
    (denial,) = result.sandbox.denials
    assert (denial.path, denial.operation) == (host_socket, "connect")
    assert f"the socket {host_socket} is walled off by policy" in hints(result)
    (refusal,) = explain(station.daemon, result.run_id)["refusals"]
    assert f'grant = ["{host_socket}"]' in refusal["allow"]


def test_a_socket_that_is_not_there_is_not_ours_to_explain(station: Station):
    program = "import socket; socket.socket(1).connect('/run/bashd-test-nobody.sock')"
    result = station.run(f'python3 -c "{program}"')
    assert result.exit_code == 1
    assert hints(result) == ""
