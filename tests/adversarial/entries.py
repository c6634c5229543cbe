"""Every attempt there is on bashd, and which tests show what becomes of it.

The tests themselves first prove that an attempt works without walls. Here stands which
of them belong together, so that `test_entries` can count: each attempt is to be made as
root and as an ordinary user, under bubblewrap and under Landlock alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Entry:
    """One kind of attempt."""

    goal: str
    shown_by: tuple[str, ...]
    """``file::test``, below tests/."""


_DEPUTIES: Final = "adversarial/test_deputies.py"
_DEVICES: Final = "adversarial/test_devices_and_knobs.py"
_FILLING: Final = "adversarial/test_filling.py"
_FORGED: Final = "adversarial/test_forged_output.py"
_FRAMES: Final = "adversarial/test_frames.py"
_LAUNCHER: Final = "adversarial/test_attack_launcher.py"
_METADATA: Final = "adversarial/test_metadata.py"
_SECRETS: Final = "adversarial/test_secrets.py"
_SMUGGLING: Final = "adversarial/test_smuggling.py"
_WAYS_OUT: Final = "adversarial/test_ways_out.py"
_CGROUP: Final = "kernel/test_cgroup.py"

ENTRIES: Final = {
    "e01": Entry(
        "have a bus or the service manager start something",
        (
            f"{_DEPUTIES}::test_e01_a_session_bus_does_not_answer",
            f"{_DEPUTIES}::test_e01_neither_systemd_nor_a_system_bus_is_there",
        ),
    ),
    "e02": Entry(
        "talk to a container engine",
        (
            f"{_DEPUTIES}::test_e02_sockets_in_run_and_tmp_are_out_of_reach",
            f"{_DEPUTIES}::test_e02_sockets_elsewhere_are_out_of_reach",
            f"{_DEPUTIES}::test_e02_a_container_engine_does_not_answer",
        ),
    ),
    "e03": Entry(
        "use an agent's keys",
        (
            f"{_DEPUTIES}::test_e03_an_ssh_agent_is_neither_found_nor_reached",
            f"{_DEPUTIES}::test_e03_a_gpg_agent_is_not_reached",
        ),
    ),
    "e04": Entry(
        "ask the daemon for more, from inside",
        (
            f"{_DEPUTIES}::TestE04TheDaemonItself::test_no_way_to_it_is_found",
            f"{_DEPUTIES}::TestE04TheDaemonItself::test_where_it_is_reached_it_knows_who_asks",
        ),
    ),
    "e06": Entry(
        "be taken for another user",
        (
            "multiuser/test_isolation.py::test_another_users_session_is_as_unknown_as_one_that_never_was",
            "multiuser/test_isolation.py::test_a_task_id_names_ones_own_task_and_never_anothers",
        ),
    ),
    "e08": Entry(
        "connect to an abstract socket",
        (f"{_DEPUTIES}::test_e08_abstract_sockets_are_out_of_reach",),
    ),
    "e10": Entry(
        "type into a terminal multiplexer, or an editor",
        (
            f"{_DEPUTIES}::test_e10_a_terminal_multiplexer_runs_nothing",
            f"{_DEPUTIES}::test_e02_sockets_in_run_and_tmp_are_out_of_reach",
        ),
    ),
    "e11": Entry(
        "go through the links of /proc",
        (f"{_WAYS_OUT}::test_no_link_in_proc_leads_out",),
    ),
    "e12": Entry(
        "get out by a link, a rename or a mount",
        (f"{_SECRETS}::test_no_link_rename_or_mount_leads_out",),
    ),
    "e13": Entry(
        "write through a hard link that is there",
        (
            f"{_SECRETS}::test_e13_a_hard_link_that_was_there_before_leads_out_and_none_is_made",
            f"{_METADATA}::test_e13_a_hook_that_has_another_name_is_put_back",
        ),
    ),
    "e15": Entry(
        "move the writable root by the folder of a call",
        (f"{_SECRETS}::test_the_workdir_of_a_call_moves_no_wall",),
    ),
    "e16": Entry(
        "plant what the host will run",
        (f"{_METADATA}::test_e16_what_the_host_would_run_is_not_planted",),
    ),
    "e17": Entry(
        "plant it in what is not there yet",
        (
            f"{_METADATA}::test_e17_a_repository_born_in_a_call_is_disarmed_and_then_protected",
            f"{_METADATA}::test_a_nested_clone_brings_its_own_hooks_in_vain",
        ),
    ),
    "e20": Entry(
        "change modes, owners and times outside",
        ("kernel/test_writes.py::test_no_change_outside_gets_through",),
    ),
    "e21": Entry(
        "open or make a device",
        (
            f"{_DEVICES}::test_no_device_node_is_made",
            f"{_DEVICES}::test_roots_devices_are_out_of_its_commands_reach",
            f"{_DEVICES}::test_a_device_that_the_caller_may_use_is_out_of_its_commands_reach",
        ),
    ),
    "e22": Entry(
        "turn a knob of the kernel's",
        (
            f"{_DEVICES}::test_no_knob_of_the_kernels_can_be_turned_by_root",
            f"{_DEVICES}::test_no_knob_that_is_found_anywhere_can_be_turned",
        ),
    ),
    "e24": Entry(
        "read what is masked",
        (
            f"{_SECRETS}::test_every_store_is_closed_in_every_confined_mode",
            f"{_SECRETS}::test_the_shipped_masks_close_the_systems_and_the_homes_stores",
            f"{_SECRETS}::TestUnderAnyName::test_through_links_made_inside_and_outside",
            f"{_DEPUTIES}::TestE04TheDaemonItself::test_its_state_is_closed",
        ),
    ),
    "e26": Entry(
        "fill disk, inodes and memory",
        (
            f"{_FILLING}::test_no_file_grows_beyond_the_policys_limit",
            f"{_FILLING}::test_a_folder_in_memory_holds_what_the_policy_allows",
            f"{_FILLING}::test_the_folder_in_memory_is_the_hosts_and_that_is_a_gap",
            f"{_FILLING}::test_thousands_of_files_go_with_their_session",
            "faults/test_scarce.py::test_full_disk_is_survived_and_space_is_used_again",
        ),
    ),
    "e28": Entry(
        "type for the person at the terminal",
        (f"{_DEVICES}::test_nothing_is_typed_for_the_person_at_the_terminal",),
    ),
    "e29": Entry(
        "signal what is outside",
        (f"{_LAUNCHER}::test_no_signal_leaves_the_cell_and_the_next_command_runs",),
    ),
    "e30": Entry(
        "trace, read or rob other processes",
        (f"{_LAUNCHER}::test_no_process_can_be_read_or_steered",),
    ),
    "e32": Entry(
        "stay, or come back later",
        (
            f"{_WAYS_OUT}::TestWhatWouldStartLater::test_nohup_disown_and_daemons_end_with_their_session",
            f"{_WAYS_OUT}::TestWhatWouldStartLater::test_a_users_own_services_and_start_up_are_out_of_reach",
            f"{_WAYS_OUT}::TestWhatWouldStartLater::test_the_systems_timetables_are_out_of_roots_commands_reach",
            "kernel/test_tree_kill.py::test_killed_task_leaves_no_process",
            "kernel/test_tree_kill.py::test_timed_out_command_leaves_no_process",
            "kernel/test_tree_kill.py::test_closed_session_leaves_no_process",
        ),
    ),
    "e33": Entry(
        "fork without end",
        (
            f"{_CGROUP}::test_fork_bomb_stays_within_the_pids_limit_and_bothers_nobody",
            f"{_CGROUP}::test_foreground_fork_bomb_ends_at_its_timeout",
        ),
    ),
    "e34": Entry(
        "take all memory",
        (
            f"{_CGROUP}::test_command_beyond_its_memory_is_killed_and_that_is_said",
            f"{_CGROUP}::test_without_a_cgroup_one_process_is_bounded_and_says_so_itself",
        ),
    ),
    "e36": Entry(
        "take all processors",
        ("faults/test_scarce.py::test_greedy_tasks_leave_the_daemon_to_others",),
    ),
    "e39": Entry(
        "use what uid 0 may do",
        (
            "kernel/test_capabilities.py::test_no_command_has_a_capability_it_could_use",
            "kernel/test_seccomp.py::test_what_nobody_needs_is_refused",
        ),
    ),
    "e40": Entry(
        "take the walls down from inside",
        (
            f"{_WAYS_OUT}::test_nothing_a_process_asks_for_itself_widens_its_walls",
            f"{_WAYS_OUT}::test_a_statically_linked_program_meets_the_same_walls",
            f"{_LAUNCHER}::test_the_keeper_outlives_what_its_commands_send",
        ),
    ),
    "e42": Entry(
        "act in a process that has no walls yet, by its environment",
        (f"{_SMUGGLING}::test_a_start_up_variable_acts_behind_the_walls_only",),
    ),
    "e43": Entry(
        "find credentials that were left",
        (f"{_SECRETS}::test_no_credential_is_left_anywhere_in_the_environment",),
    ),
    "e45": Entry(
        "smuggle an argument",
        (
            f"{_SMUGGLING}::test_an_odd_command_is_what_bash_makes_of_it",
            f"{_SMUGGLING}::test_what_can_be_no_command_is_a_clear_error",
            f"{_SMUGGLING}::test_a_folder_of_any_name_is_that_folder",
            f"{_SMUGGLING}::test_a_name_in_a_policy_grants_and_hides_that_and_nothing_else",
        ),
    ),
    "e46": Entry(
        "forge what bashd says",
        (
            f"{_FORGED}::test_a_printed_marker_changes_no_fact",
            f"{_FORGED}::test_the_real_marker_comes_last",
            f"{_FORGED}::test_a_forged_denial_proves_nothing_and_a_true_one_is_still_known",
        ),
    ),
    "e48": Entry(
        "have a terminal or a parser obey",
        (
            f"{_FORGED}::test_a_terminal_is_sent_nothing_that_it_would_obey",
            f"{_FORGED}::test_whatever_bytes_come_out_the_json_is_json",
        ),
    ),
    "e49": Entry(
        "read, change or replace kept output",
        (f"{_SECRETS}::test_another_sessions_output_cannot_be_read_or_changed",),
    ),
    "e51": Entry(
        "flood",
        (
            f"{_FILLING}::test_e51_floods_of_one_session_cost_neither_disk_nor_memory_nor_others",
            "faults/test_scarce.py::test_greedy_tasks_leave_the_daemon_to_others",
        ),
    ),
    "e52": Entry(
        "get more than was approved",
        (
            "test_approvals.py::test_a_question_says_all_there_is_to_know_and_is_answered_once",
            "test_approvals.py::test_an_answer_is_for_one_question_and_the_same_is_asked_again",
            "test_approvals.py::test_a_loop_that_asks_is_refused",
        ),
    ),
    "e53": Entry(
        "send what is no message",
        (
            f"{_FRAMES}::test_a_malformed_frame_is_answered_and_the_connection_goes_on",
            f"{_FRAMES}::test_random_bytes_and_mutated_frames_never_hurt",
        ),
    ),
    "e54": Entry(
        "send too much, or too slowly, or never read",
        (
            f"{_FRAMES}::test_a_frame_of_a_gigabyte_is_refused_while_it_is_sent",
            f"{_FRAMES}::test_slow_senders_cost_nothing",
            f"{_FRAMES}::test_who_never_reads_holds_up_nobody",
        ),
    ),
    "e56": Entry(
        "be run without walls for want of them",
        (
            "adversarial/test_no_fallback.py::test_without_its_runner_nothing_runs_unconfined",
            "kernel/test_old_kernels.py::test_without_landlock_and_bubblewrap_nothing_runs",
            "faults/test_scarce.py::test_descriptors_run_out_and_running_tasks_go_on",
        ),
    ),
    "e58": Entry(
        "send something out although there is no network",
        ("adversarial/test_offline.py::test_nothing_leaves_by_any_kind_of_socket",),
    ),
    "e60": Entry(
        "learn what others do",
        (
            f"{_WAYS_OUT}::test_the_hosts_pids_mean_nothing_in_a_cell",
            f"{_WAYS_OUT}::test_other_terminals_and_processes_can_be_seen_and_that_is_a_gap",
            f"{_SECRETS}::test_root_sees_no_more_of_the_kernels_layout_than_anybody",
        ),
    ),
}
"""By the short name that some tests carry in theirs."""
