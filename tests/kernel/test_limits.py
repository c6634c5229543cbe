"""What commands may open: as many as whoever started the daemon, to begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kernel.test_tasks_reload import reload

if TYPE_CHECKING:
    from tests.conftest import DaemonFactory
    from tests.support.accounts import Account
    from tests.support.daemons import RunningDaemon

SOFT, HARD = 300, 5_000
MODES = ("read-only", "workspace-write", "danger-full-access")


def limits_seen(daemon: RunningDaemon, mode: str) -> tuple[int, int]:
    """Return the soft and the hard limit on descriptors of a command."""
    result = daemon.run("ulimit -Sn; ulimit -Hn", cwd=daemon.workspaces[0], mode=mode)
    soft, hard = result["stdout"]["text"].split()
    return int(soft), int(hard)


def test_commands_begin_with_the_descriptors_that_the_daemon_began_with(
    make_daemon: DaemonFactory, identity: Account
):
    daemon = make_daemon(
        account=identity,
        runner="landlock",
        wrap=["prlimit", f"--nofile={SOFT}:{HARD}", "--"],
    )
    daemon.make_workspace()
    for mode in MODES:
        assert limits_seen(daemon, mode) == (SOFT, HARD)
    # The daemon itself uses all; a new program in its place has to know what was.
    reload(daemon)
    assert limits_seen(daemon, MODES[0]) == (SOFT, HARD)


def test_command_may_take_what_the_policy_allows(
    make_daemon: DaemonFactory, identity: Account
):
    daemon = make_daemon(
        account=identity,
        runner="landlock",
        wrap=["prlimit", f"--nofile={SOFT}:{HARD}", "--"],
    )
    workspace = daemon.make_workspace()
    taken = daemon.run(f"ulimit -n {HARD} && ulimit -n", cwd=workspace)
    assert taken["stdout"]["text"] == f"{HARD}\n", taken
