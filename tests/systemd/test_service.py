"""The system's service under a real systemd: from its first start to its last trace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.units import is_expected
from tests.systemd.hardening import NOT_TAKEN

if TYPE_CHECKING:
    from tests.systemd.conftest import Served

pytestmark = pytest.mark.slow

COUNTING = "for i in $(seq 1 400); do echo line $i; sleep 0.01; done"
"""Four seconds of output, so that something comes before, while and after."""
COUNTED = "".join(f"line {i}\n" for i in range(1, 401))
TICKING = "while :; do echo tick; sleep 0.05; done"

_SERVICE_GROUP = "/sys/fs/cgroup/system.slice/bashd.service"


def wait_for_output(served: Served, user: str, task: str) -> None:
    """Wait until a task has written something."""
    while not served.run_as(user, "logs", task, "--no-autostart")[1]:
        pass


def test_the_first_command_starts_the_service(served: Served):
    served.machine.check("systemctl", "stop", "bashd.service")
    assert served.machine.show("bashd.socket", "SubState") == "listening"
    assert served.confined("alice", "id -un; id -Gn") == "alice\nalice bashd"
    assert served.machine.show("bashd.service", "ActiveState") == "active"


def test_start_returns_when_commands_can_run(running: Served):
    assert running.machine.show("bashd.service", "SubState") == "running"
    status = running.machine.show("bashd.service", "StatusText")
    assert status == "listening on /run/bashd/bashd.sock"


def test_start_fails_when_the_configuration_is_wrong(running: Served):
    running.machine.check("systemctl", "stop", "bashd.service")
    running.machine.shell("echo '[daemon] spares = 2' >/etc/bashd/bashd.toml")
    try:
        done = running.machine.run("systemctl", "start", "bashd.service")
        running.machine.check("systemctl", "stop", "bashd.service", "bashd.socket")
    finally:
        running.machine.check("rm", "/etc/bashd/bashd.toml")
        running.machine.check("systemctl", "reset-failed", "bashd.service")
    assert done.returncode != 0
    said = "\n".join(str(entry["MESSAGE"]) for entry in running.journal())
    assert "/etc/bashd/bashd.toml" in said


def test_membership_in_the_group_is_the_right_to_use_it(running: Served):
    status, output = running.run_as("bob", "run", "--no-autostart", "--", "true")
    assert status == 125, output
    status, output = running.run_as(
        "bob", "run", "--socket", "/run/bashd/bashd.sock", "--", "true"
    )
    assert status == 125, output
    assert "bashd" in output


def test_each_user_is_served_as_themselves(running: Served):
    for user in ("alice", "carol"):
        command = "id -u; echo $HOME; touch mine; stat -c %U mine"
        uid = running.machine.check("id", "-u", user)
        assert running.confined(user, command) == f"{uid}\n/home/{user}\n{user}"


def test_commands_live_in_control_groups_of_the_service(running: Served):
    lines = running.confined("alice", "cat /proc/self/cgroup").splitlines()
    own = next(line for line in lines if line.startswith("0::"))
    assert "/bashd.service/" in own


def test_a_reload_keeps_a_running_task_and_all_it_writes(running: Served):
    task = running.start_task("alice", COUNTING)
    wait_for_output(running, "alice", task)
    running.machine.check("systemctl", "reload", "bashd.service")
    assert running.tasks("alice")[task]["status"] == "running"
    assert running.run_as("alice", "wait", task)[0] == 0
    assert running.run_as("alice", "logs", task)[1] == COUNTED


def test_a_reload_takes_a_new_configuration_over(running: Served):
    running.machine.check("install", "-d", "/etc/bashd")
    running.machine.shell(
        "printf '[daemon]\\nallow_root = false\\n' >/etc/bashd/bashd.toml"
    )
    try:
        running.machine.check("systemctl", "reload", "bashd.service")
        refused = running.machine.run(
            *(running.python, "-P", "-m", "bashd", "run", "--no-autostart"),
            "--",
            "true",
        )
    finally:
        running.machine.check("rm", "/etc/bashd/bashd.toml")
        running.machine.check("systemctl", "reload", "bashd.service")
    assert refused.returncode == 125
    assert "root" in refused.stderr
    running.bashd("run", "--no-autostart", "--", "true")


def test_after_a_crash_tasks_go_on_without_a_byte_missing(running: Served):
    before = running.main_pid
    task = running.start_task("alice", COUNTING)
    wait_for_output(running, "alice", task)
    running.machine.check("kill", "-KILL", before)
    running.machine.wait_for(
        "[ $(systemctl show --value -p MainPID bashd.service) != "
        f"{before} ] && systemctl is-active bashd.service"
    )
    assert running.main_pid not in ("0", before)
    assert running.run_as("alice", "wait", task)[0] == 0
    assert running.run_as("alice", "logs", task)[1] == COUNTED


def test_a_daemon_that_stands_still_is_replaced_and_its_tasks_go_on(running: Served):
    machine = running.machine
    folder = "/run/systemd/system/bashd.service.d"
    machine.shell(
        f"mkdir -p {folder}; printf '[Service]\\nWatchdogSec=2\\n' >{folder}/short.conf;"
        " systemctl daemon-reload; systemctl restart bashd.service"
    )
    try:
        before = running.main_pid
        task = running.start_task("alice", "echo begun; sleep 5; echo survived")
        wait_for_output(running, "alice", task)
        machine.check("kill", "-STOP", before)
        machine.wait_for(
            "[ $(systemctl show --value -p NRestarts bashd.service) = 1 ]"
            " && systemctl is-active bashd.service"
        )
        assert running.run_as("alice", "wait", task) == (0, "")
        assert running.run_as("alice", "logs", task)[1] == "begun\nsurvived\n"
    finally:
        machine.shell(f"rm -r {folder}; systemctl daemon-reload")
    said = machine.check("journalctl", "-u", "bashd.service", "-o", "cat")
    assert "Watchdog timeout" in said


def test_a_watched_daemon_that_works_is_left_alone(running: Served):
    machine = running.machine
    folder = "/run/systemd/system/bashd.service.d"
    machine.shell(
        f"mkdir -p {folder}; printf '[Service]\\nWatchdogSec=1\\n' >{folder}/short.conf;"
        " systemctl daemon-reload; systemctl restart bashd.service"
    )
    try:
        before = running.main_pid
        running.confined("alice", "sleep 2.5")
        assert running.main_pid == before
    finally:
        machine.shell(f"rm -r {folder}; systemctl daemon-reload")


def test_a_restart_ends_tasks_and_the_next_command_finds_the_new_daemon(
    running: Served,
):
    before = running.main_pid
    task = running.start_task("alice", TICKING)
    pids = running.machine.shell(f"cat $(find {_SERVICE_GROUP} -name cgroup.procs)")
    running.machine.check("systemctl", "restart", "bashd.service")
    assert running.confined("alice", "echo here") == "here"
    assert running.main_pid != before
    assert running.tasks("alice").get(task, {}).get("status") != "running"
    for pid in pids.split():
        assert running.machine.run("test", "-e", f"/proc/{pid}").returncode != 0


def test_a_stop_leaves_no_process_no_group_no_mount_and_no_folder(running: Served):
    machine = running.machine
    mounts = machine.check("cut", "-d ", "-f2,3", "/proc/mounts")
    for user in ("alice", "carol"):
        running.start_task(user, TICKING)
        running.start_task(user, "setsid sleep 1000 & trap '' TERM; sleep 1000")
    machine.check("systemctl", "stop", "bashd.service", "bashd.socket")
    assert machine.run("test", "-e", _SERVICE_GROUP).returncode != 0
    for user in ("alice", "carol"):
        assert machine.run("pgrep", "-u", user).stdout == ""
    assert machine.check("cut", "-d ", "-f2,3", "/proc/mounts") == mounts
    assert machine.check("ls", "-A", "/run/bashd") == ""
    assert machine.check("ls", "-A", "/var/lib/bashd/sessions") == ""


def test_five_crashes_in_a_minute_end_in_failure(running: Served):
    machine = running.machine
    for _ in range(6):
        if machine.show("bashd.service", "ActiveState") == "failed":
            break
        pid = running.main_pid
        machine.run("kill", "-KILL", pid)
        machine.wait_for(
            f"test $(systemctl show --value -p MainPID bashd.service) != {pid}; "
            "case $(systemctl is-active bashd.service) in active|failed) ;; *) exit 1;;"
            " esac"
        )
    state = machine.show("bashd.service", "ActiveState")
    machine.check("systemctl", "reset-failed", "bashd.service", "bashd.socket")
    assert state == "failed"


def test_a_ceiling_in_etc_binds_a_user_and_is_shown_with_its_source(running: Served):
    machine = running.machine
    machine.shell(
        "mkdir -p /etc/bashd; printf '[ceiling.user.alice]\\nmode = \"read-only\"\\n'"
        " >/etc/bashd/bashd.toml; systemctl restart bashd.service"
    )
    try:
        wide = ("run", "--no-autostart", "--mode", "workspace-write", "--", "true")
        status, said = running.run_as("alice", *wide)
        assert status == 125
        assert "ceiling" in said
        assert running.run_as("carol", *wide)[0] == 0
        status, said = running.run_as("alice", "policy", "effective")
        assert status == 0, said
        assert 'mode = "read-only"' in said
        narrowed = running.run_as("alice", "policy", "effective", "workspace-write")
        assert "[ceiling.user.alice]" in said + narrowed[1]
    finally:
        machine.shell("rm /etc/bashd/bashd.toml; systemctl restart bashd.service")


def test_a_group_may_have_more_than_everybody(running: Served):
    machine = running.machine
    machine.shell("groupadd builders; gpasswd -a carol builders; mkdir -p /etc/bashd")
    machine.shell(
        'printf \'[ceiling]\\nmode = "read-only"\\n[ceiling.group.builders]\\nmode ='
        ' "workspace-write"\\n\' >/etc/bashd/bashd.toml; systemctl restart bashd.service'
    )
    try:
        wide = ("run", "--no-autostart", "--mode", "workspace-write", "--", "true")
        assert running.run_as("carol", *wide)[0] == 0
        status, said = running.run_as("alice", *wide)
        assert (status, "ceiling" in said) == (125, True), said
        effective = ("policy", "effective", "danger-full-access")
        assert "[ceiling.group.builders]" in running.run_as("carol", *effective)[1]
        assert "[ceiling]" in running.run_as("alice", *effective)[1]
    finally:
        machine.shell("rm /etc/bashd/bashd.toml; groupdel builders")
        machine.check("systemctl", "restart", "bashd.service")


def test_the_journal_gets_fields_not_only_lines(running: Served):
    entry = next(
        entry
        for entry in reversed(running.journal())
        if str(entry["MESSAGE"]).startswith("listening on")
    )
    assert entry["SYSLOG_IDENTIFIER"] == "bashd"
    assert entry["LOGGER"] == "bashd.daemon.lifecycle"
    assert entry["PRIORITY"] == "6"
    assert entry["CODE_FUNC"]


def test_figures_are_for_root_and_the_group_that_is_named(running: Served):
    machine = running.machine
    machine.shell("groupadd watchers; gpasswd -a bob watchers; mkdir -p /etc/bashd")
    machine.shell("printf '[metrics]\\ngroup = \"watchers\"\\n' >/etc/bashd/bashd.toml")
    read = (
        "import socket; s = socket.socket(socket.AF_UNIX);"
        "s.connect('/run/bashd/bashd.sock.metrics');"
        "s.sendall(b'GET /metrics HTTP/1.1\\r\\n\\r\\n'); print(s.recv(99999))"
    )
    try:
        machine.check("systemctl", "restart", "bashd.service")
        for user, may in (("bob", True), ("alice", False), ("root", True)):
            done = machine.run(
                *("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"),
                *("--", "/usr/bin/python3", "-c", read),
            )
            assert ("bashd_commands_total" in done.stdout) is may, (user, done.stderr)
        # Who may watch may not run.
        assert running.run_as("bob", "run", "--no-autostart", "--", "true")[0] == 125
    finally:
        machine.shell("rm /etc/bashd/bashd.toml; groupdel watchers")
        machine.check("systemctl", "restart", "bashd.service")


def test_systemd_finds_no_fault_with_what_was_installed(served: Served):
    done = served.machine.run(
        *("systemd-analyze", "verify"),
        *("/etc/systemd/system/bashd.service", "/etc/systemd/system/bashd.socket"),
    )
    lines = [line for line in done.stderr.splitlines() if not is_expected(line)]
    complaints = [line for line in lines if "bashd" in line]
    assert (done.returncode, complaints) == (0, [])


def test_the_manual_pages_are_found(served: Served):
    for page in ("bashd", "bashd.toml"):
        assert served.machine.check("man", "-w", page).startswith("/usr/local/")


def test_every_hardening_that_is_not_taken_has_a_reason(served: Served):
    text = served.machine.check(
        "systemd-analyze", "security", "--json=short", "bashd.service"
    )
    lines = json.loads(text)
    open_ = {line["json_field"] for line in lines if line["set"] is False}
    assert open_ - NOT_TAKEN.keys() == set(), "new findings without a reason"
    assert NOT_TAKEN.keys() - open_ == set(), "reasons for what is taken by now"
