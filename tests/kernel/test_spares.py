"""Spares: there is always one for the next command, whatever became of the others."""

from __future__ import annotations

from pathlib import Path

from tests.support.launchers import is_launcher
from tests.support.stations import ALL, UNDER_BWRAP, WORKSPACE_WRITE, Station, on

INTRUDER = Path(__file__).parents[1] / "adversarial" / "intruder.py"


def waiting(station: Station) -> list[int]:
    """Return the host's pids of everything in cells that is no command."""
    return [pid for pid in station.daemon.enclosure.pids() if is_launcher(pid)]


def test_more_commands_at_once_than_there_are_spares(station: Station):
    # Each waits until all have started, so none can wait for another's end.
    names = [str(number) for number in range(12)]
    together = f"until test $(ls | wc -l) -ge {len(names)}; do sleep 0.05; done"
    tasks = [
        station.client.start(
            f"touch {name}; {together}; echo {name}", mode=WORKSPACE_WRITE
        )
        for name in names
    ]
    said = []
    for task in tasks:
        assert station.client.wait(task.task_id).exit_code == 0
        read = station.client.read_output(task.task_id)
        said.append(read and read.delta)
    assert said == [f"{name}\n" for name in names]


def test_a_killed_spare_is_replaced_before_anybody_notices(station: Station):
    for _ in range(3):
        station.run("true")
        if station.under_bwrap:
            station.program(INTRUDER, "end")
        else:
            station.program(INTRUDER, "end", *waiting(station))
        results = [station.run("echo there") for _ in range(4)]
        assert {result.stdout.text for result in results} == {"there\n"}


@on(*ALL)
def test_commands_do_not_share_what_they_changed(station: Station):
    station.text("umask 077; ulimit -n 100; cd /; export LEFT=over; set -o noglob")
    seen = station.text("umask; ulimit -n; pwd; echo ${LEFT-gone}; echo $-")
    umask, files, place, left, flags = seen.split("\n")[:5]
    assert (umask, place, left) == ("0022", str(station.workspace), "gone")
    assert int(files) > 100
    assert "f" not in flags


@on(*UNDER_BWRAP)
def test_processes_of_the_cell_are_few_and_the_commands_see_no_others(
    station: Station,
):
    seen = station.text("ls /proc | grep -c '^[0-9]*$'")
    # The keeper, the zygote, spares, the shell and the two of the pipe.
    assert int(seen) < 16
    assert station.text("cat /proc/1/comm") == "bashd-keeper\n"
