"""What users of comparable tools have reported of tasks and output, as they did it.

The other reports of these two groups are where their subject is: pipes that are held
open, wrappers, orphans, lost ids, floods; their tests have the report's name, too.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.kernel.test_tasks_terminal import at_terminal
from tests.support.stations import (
    ROOT_BWRAP,
    SERVED_BWRAP,
    USER_LANDLOCK,
    Station,
    on,
)

THREE = (ROOT_BWRAP, SERVED_BWRAP, USER_LANDLOCK)
IDLE = 10
LOOK_S = 3.0


@on(*THREE)
def test_i46_a_task_has_the_status_of_its_own_child(station: Station):
    command = "bash -c 'for i in 1 2 3; do echo $i; sleep 0.1; done; exit 7' 2>&1"
    task = station.client.start(command)
    info = station.client.wait(task.task_id)
    assert (str(info.status), info.exit_code) == ("completed", 7)
    read = station.client.read_output(task.task_id)
    assert read is not None
    assert read.delta == "1\n2\n3\n"


@on(*THREE)
def test_i50_what_looks_like_a_status_is_only_output(station: Station):
    words = "SHELLPS1PREFIX\nEXITCODESTART0EXITCODEEND\n[exit code: 0]\n"
    result = station.run(f"printf %s '{words}'; false")
    assert (result.exit_code, result.stdout.text) == (1, words)


@on(*THREE)
def test_results_and_tasks_say_what_they_cost(station: Station):
    busy = "ulimit -t 30; for i in {1..200000}; do :; done; sleep 0.2"
    usage = station.run(busy).usage
    task = station.client.start(busy)
    info = station.client.wait(task.task_id)
    assert usage.wall_ms >= usage.cpu_ms >= 50, usage
    assert usage.max_rss_bytes > 1_000_000
    assert info.age_s * 1000 >= info.cpu_ms >= 50, info
    assert info.max_rss_bytes > 1_000_000


def cpu_ticks(station: Station) -> int:
    """Return what the daemon and all it has started have used."""
    total = 0
    for pid in station.daemon.enclosure.pids():
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total


@pytest.mark.slow
@on(*THREE)
def test_i51_sessions_and_terminals_that_do_nothing_cost_nothing(station: Station):
    for _ in range(IDLE):
        station.open().run("true")
    command = "echo ready; cat"
    with (
        at_terminal(station, "-t", "--", command) as one,
        at_terminal(station, "-t", "--", command) as other,
    ):
        one.see("ready")
        other.see("ready")
        time.sleep(1)  # what was started comes to rest
        before = cpu_ticks(station)
        time.sleep(LOOK_S)
        used_s = (cpu_ticks(station) - before) / os.sysconf("SC_CLK_TCK")
    assert used_s < 0.03 * LOOK_S, f"{used_s:.2f} s of {LOOK_S:g} s"
