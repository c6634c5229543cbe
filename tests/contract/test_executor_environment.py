"""J. Environment, over a real daemon."""

from __future__ import annotations

import threading

from bashd.client import SyncClient
from bashd.client.link import Link
from tests.support.stations import (
    ALL,
    CONFINING,
    FULL_ACCESS,
    OWN,
    SERVED_LANDLOCK,
    USER_BWRAP,
    WORKSPACE_WRITE,
    Station,
    on,
)

TWO = (USER_BWRAP, SERVED_LANDLOCK)
SECRETS = {
    "A_API_KEY": "canary",
    "A_TOKEN": "canary",
    "A_SECRET": "canary",
    "A_PASSWORD": "canary",
    "github_token": "canary",
    "MONKEY": "canary",
    "BASHD_HOME_OF": "canary",
}
PLAIN = {
    "A_PLAIN": "here",
    "LANG": "C.UTF-8",
    "HTTP_PROXY": "http://192.0.2.1:3128",
    "SSH_AUTH_SOCK": "/nowhere/agent",
    "CARGO_HOME": "/nowhere/cargo",
    "NVM_DIR": "/nowhere/nvm",
}


@on(*ALL)
def test_c163_c165_i62_credentials_stay_and_the_rest_comes_along(station: Station):
    environ = station.environ | SECRETS | PLAIN
    session = station.open(environ=environ)
    for mode in (*CONFINING, FULL_ACCESS):
        result = session.run("env -0", mode=mode)
        seen: dict[str, str] = {}
        for entry in result.stdout.text.split("\0"):
            name, _, value = entry.partition("=")
            seen[name] = value
        assert "canary" not in seen.values()
        assert not seen.keys() & SECRETS.keys()
        assert {name: seen.get(name) for name in PLAIN} == PLAIN
        for name in ("PATH", "HOME", "USER", "LOGNAME"):
            assert seen[name] == environ[name]
        # Names, never values, of what was taken.
        assert set(result.env_removed) >= SECRETS.keys()
        assert "canary" not in str(result)


@on(OWN)
def test_the_daemon_scrubs_what_a_client_did_not(station: Station):
    link = Link.reach(str(station.daemon.socket), autostart=False)
    try:
        answer = link.call(
            "exec.run",
            {
                "command": "echo ${A_TOKEN-gone} ${A_PLAIN-gone}",
                "cwd": str(station.workspace),
                "ambient": {"A_TOKEN": "canary", "A_PLAIN": "here", "PATH": "/usr/bin"},
            },
        )
    finally:
        link.close()
    assert answer["stdout"]["text"] == "gone here\n"
    assert answer["env_removed"] == ["A_TOKEN"]


@on(*TWO)
def test_c166_a_terminal_that_no_program_waits_at(station: Station):
    command = "echo $NO_COLOR/$TERM/$PAGER/$GIT_PAGER/$GIT_TERMINAL_PROMPT/$GIT_EDITOR"
    environ = {"TERM": "xterm", "PAGER": "less", "GIT_EDITOR": "vi"}
    for mode in (WORKSPACE_WRITE, FULL_ACCESS):
        assert station.text(command, mode) == "1/dumb/cat/cat/0/true\n"
    session = station.open(environ=station.environ | environ)
    assert session.run(command).stdout.text == "1/dumb/cat/cat/0/true\n"


@on(*TWO)
def test_c167_what_is_said_for_one_call_wins_and_is_never_scrubbed(station: Station):
    env = {"TERM": "xterm", "MY_KEY": "v", "HOME": "/nowhere"}
    result = station.run("echo $TERM $MY_KEY $HOME", env=env)
    assert result.stdout.text == "xterm v /nowhere\n"
    assert "MY_KEY" not in result.env_removed
    assert station.text("echo $TERM ${MY_KEY-gone}") == "dumb gone\n"
    task = station.client.start("echo $MY_KEY", env=env)
    station.client.wait(task.task_id)
    read = station.client.read_output(task.task_id)
    assert read is not None
    assert read.delta == "v\n"


@on(*TWO)
def test_c169_c170_managed_facts(station: Station):
    session = station.client.session
    command = "echo $BASHD_SHELL $BASHD_SESSION_ID $BASHD_SESSION_JSONL $BASHD_HOME"
    wanted = f"1 {session.session_id} {session.log_path} {station.caller.home}/.bashd\n"
    for mode in (*CONFINING, FULL_ACCESS):
        assert station.text(command, mode) == wanted
        faked = {"BASHD_SESSION_ID": "fake", "BASHD_SHELL": "0"}
        assert station.text(command, mode, env=faked) == wanted
    fakes = {"BASHD_SESSION_ID": "fake", "bashd_session_id": "fake"}
    other = station.open(environ=station.environ | fakes)
    said = other.run("echo $BASHD_SESSION_ID ${bashd_session_id-gone}").stdout.text
    assert said == f"{other.session.session_id} gone\n"
    # The log that is named can be read.
    assert station.run('test -r "$BASHD_SESSION_JSONL"').exit_code == 0


@on(*TWO)
def test_bashd_home_follows_the_callers_home_unless_it_is_named(station: Station):
    home = str(station.give(station.folder / "home"))
    elsewhere = station.open(environ=station.environ | {"HOME": home})
    assert elsewhere.run("echo $HOME $BASHD_HOME").stdout.text == (
        f"{home} {home}/.bashd\n"
    )
    named = station.environ | {"HOME": home, "BASHD_HOME": "/named"}
    assert station.open(environ=named).run("echo $BASHD_HOME").stdout.text == "/named\n"


@on(OWN)
def test_c169_without_a_session_there_is_no_session_id(station: Station):
    link = Link.reach(str(station.daemon.socket), autostart=False)
    try:
        answer = link.call(
            "exec.run",
            {
                "command": "echo $BASHD_SHELL ${BASHD_SESSION_ID-none}",
                "ambient": {"PATH": "/usr/bin:/bin"},
            },
        )
    finally:
        link.close()
    assert answer["stdout"]["text"] == "1 none\n"


@on(*TWO)
def test_c171_sessions_at_the_same_time_see_their_own(station: Station):
    others = [station.open() for _ in range(3)]
    said: dict[str, set[str]] = {}

    def ask(session: SyncClient) -> None:
        said[session.session.session_id] = {
            session.run("sleep 0.01; echo $BASHD_SESSION_ID").stdout.text
            for _ in range(5)
        }

    threads = [threading.Thread(target=ask, args=(session,)) for session in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == {session_id: {f"{session_id}\n"} for session_id in said}
    assert len(said) == 3


@on(*TWO)
def test_c172_a_tombstone_removes(station: Station):
    session = station.open(environ=station.environ | {"FOO": "set"})
    assert session.run("echo ${FOO-absent}").stdout.text == "set\n"
    gone = session.run(
        "echo ${FOO-absent} ${TERM-absent}", env={"FOO": None, "TERM": None}
    )
    # bash itself sets TERM to dumb where there is none.
    assert gone.stdout.text.split()[0] == "absent"
    assert session.run("echo ${FOO-absent}").stdout.text == "set\n"


@on(*TWO)
def test_what_the_client_attached_with_is_the_environment_from_then_on(
    station: Station,
):
    session = station.open(environ=station.environ | {"FOO": "first"})
    session_id = session.session.session_id
    assert session.run("echo $FOO").stdout.text == "first\n"
    session.sessions.attach(session_id)
    assert session.run("echo $FOO").stdout.text == "first\n"
