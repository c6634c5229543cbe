"""Records to commands: what is joined to which, and what silence is worth."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bashd.core.model import Denial
from bashd.core.records import (
    CONFIG_CHANGE,
    LANDLOCK_ACCESS,
    LANDLOCK_DOMAIN,
    SECCOMP,
    SYSCALL,
)
from bashd.daemon.watches import Watch, Watches

SHELL, OTHER = 100, 200


class Kernel:
    """Writes records as the kernel does, and knows who descends from whom."""

    def __init__(self) -> None:
        self.processes: dict[int, tuple[int, int]] = {}
        """Pid to parent and session."""
        self.watches = Watches(self.processes.get)
        self._event = 0
        self._said: set[int] = set()

    def watch(self, pid: int, *, covered: bool = True) -> Watch:
        return self.watches.add(pid, covered=covered)

    def refuse(
        self,
        domain: int,
        maker: int,
        *,
        path: str = "/etc",
        blockers: str = "fs.make_reg",
        pid: int = SHELL,
        program: str = "bash",
        call: bool = True,
    ) -> None:
        self._event += 1
        self._say(
            LANDLOCK_ACCESS,
            f'domain={domain:x} blockers={blockers} path="{path}" ino=1',
        )
        if domain not in self._said:
            self._said.add(domain)
            status = f"status=allocated mode=enforcing pid={maker} uid=0"
            self._say(LANDLOCK_DOMAIN, f"domain={domain:x} {status}")
        if call:
            parent = self.processes.get(pid, (1, 1))[0]
            who = f'ppid={parent} pid={pid} comm="{program}"'
            self._say(SYSCALL, f"arch=c000003e syscall=257 success=no {who}")

    def end(self, domain: int, denials: int) -> None:
        self._event += 1
        status = f"status=deallocated denials={denials}"
        self._say(LANDLOCK_DOMAIN, f"domain={domain:x} {status}")

    def add_layer(self, pid: int) -> None:
        self._event += 1
        self._say(SECCOMP, f'pid={pid} comm="x" sig=0 syscall=446 code=0x7ffc0000')

    def reconfigure(self) -> None:
        self._event += 1
        self._say(CONFIG_CHANGE, "op=set audit_enabled=0 old=1")

    def _say(self, kind: int, rest: str) -> None:
        self.watches.handle(kind, f"audit(1.000:{self._event}): {rest}")


def told(watch: Watch, **options: Any) -> tuple[Denial, ...]:
    return watch.recorded(complete=True, lost=False, **options).refusals


def test_a_refusal_goes_to_the_command_whose_spare_made_the_domain():
    kernel = Kernel()
    mine, other = kernel.watch(SHELL), kernel.watch(OTHER)
    kernel.refuse(7, SHELL, program="touch", pid=101)
    kernel.refuse(8, OTHER, path="/opt", pid=OTHER)
    assert told(mine) == (Denial("/etc", "create", "kernel", "touch"),)
    assert told(other) == (Denial("/opt", "create", "kernel", "bash"),)


def test_later_refusals_of_a_domain_need_no_maker():
    kernel = Kernel()
    watch = kernel.watch(SHELL)
    kernel.refuse(7, SHELL)
    kernel.refuse(7, SHELL, path="/opt", pid=999)
    assert [denial.path for denial in told(watch)] == ["/etc", "/opt"]


def test_a_refusal_counts_even_if_the_kernel_says_nothing_of_its_call():
    kernel = Kernel()
    watch = kernel.watch(SHELL)
    kernel.refuse(7, SHELL, call=False)
    assert told(watch) == (Denial("/etc", "create", "kernel", None),)


def test_bash_looking_for_a_terminal_counts_for_nothing_but_the_sum():
    kernel = Kernel()
    watch = kernel.watch(SHELL)
    kernel.refuse(7, SHELL, path="/dev/tty", blockers="fs.write_file")
    kernel.end(7, 1)
    recorded = watch.recorded(complete=True, lost=False)
    assert (recorded.refusals, recorded.silence_counts) == ((), True)


def test_domains_of_other_programs_are_nobodys():
    kernel = Kernel()
    watch = kernel.watch(SHELL)
    kernel.refuse(9, 5000, pid=5001, program="chromium")
    assert told(watch) == ()
    assert watch.recorded(complete=True, lost=False).silence_counts


def test_a_scope_of_the_cell_is_found_by_the_session_of_the_process():
    kernel = Kernel()
    watch = kernel.watch(SHELL)
    kernel.watch(OTHER)
    kernel.processes[103] = (102, SHELL)
    # The cell's keeper, pid 50, made the domain; a grandchild of the shell was refused.
    kernel.refuse(3, 50, path="sshd", blockers="scope.signal", pid=103, program="kill")
    assert told(watch) == (Denial("sshd", "signal", "kernel", "kill"),)


def test_a_scope_is_found_by_ancestry_where_the_session_is_another():
    kernel = Kernel()
    watch = kernel.watch(SHELL)
    kernel.processes.update({103: (102, 102), 102: (101, 102), 101: (SHELL, SHELL)})
    kernel.refuse(3, 50, blockers="scope.signal", pid=103)
    assert len(told(watch)) == 1


def test_a_command_of_an_earlier_daemon_is_found_by_its_process():
    kernel = Kernel()
    kernel._said.add(7)
    watch = kernel.watch(SHELL)
    kernel.processes[104] = (SHELL, SHELL)
    kernel.refuse(7, SHELL, pid=104, program="touch")
    assert told(watch) == (Denial("/etc", "create", "kernel", "touch"),)


def test_a_layer_of_a_programs_own_makes_silence_worthless():
    kernel = Kernel()
    watch = kernel.watch(SHELL)
    kernel.processes[104] = (SHELL, SHELL)
    kernel.add_layer(104)
    recorded = watch.recorded(complete=True, lost=False)
    assert (recorded.silence_counts, recorded.lost) == (False, True)


def test_a_layer_of_nobody_known_counts_against_all():
    kernel = Kernel()
    watches = [kernel.watch(SHELL), kernel.watch(OTHER)]
    kernel.add_layer(777)
    assert all(w.recorded(complete=True, lost=False).lost for w in watches)


def test_refusals_by_a_layer_of_a_programs_own_are_not_ours():
    kernel = Kernel()
    watch = kernel.watch(SHELL)
    kernel.processes[104] = (SHELL, SHELL)
    kernel.refuse(12, 104, pid=104)
    recorded = watch.recorded(complete=True, lost=False)
    assert (recorded.refusals, recorded.silence_counts) == ((), False)


def test_a_sum_that_is_larger_than_what_came_means_loss():
    kernel = Kernel()
    watch = kernel.watch(SHELL)
    kernel.refuse(7, SHELL)
    kernel.end(7, 3)
    recorded = watch.recorded(complete=True, lost=False)
    assert (recorded.lost, recorded.silence_counts) == (True, False)


def test_silence_counts_for_nothing_in_a_cell_that_cannot_be_silenced_noticeably():
    recorded = Kernel().watch(SHELL, covered=False).recorded(complete=True, lost=False)
    assert (recorded.silence_counts, recorded.lost) == (False, False)


def test_a_change_of_what_is_recorded_is_counted():
    kernel = Kernel()
    kernel.reconfigure()
    assert kernel.watches.changes == 1


@given(st.integers(1, 400))
def test_what_is_kept_of_one_command_is_bounded(count):
    kernel = Kernel()
    watch = kernel.watch(SHELL)
    for number in range(count):
        kernel.refuse(7, SHELL, path=f"/{number}")
    assert len(told(watch)) == min(count, 64)
    assert watch.counted == count


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3), st.sampled_from([SHELL, OTHER, 50]), st.booleans()
        ),
        max_size=30,
    )
)
def test_no_refusal_is_counted_twice_or_for_two_commands(refused):
    kernel = Kernel()
    watches = [kernel.watch(SHELL), kernel.watch(OTHER)]
    makers: dict[int, int] = {}
    for number, (domain, wanted, call) in enumerate(refused):
        maker = makers.setdefault(domain, wanted)
        kernel.refuse(domain, maker, path=f"/{number}", pid=9000, call=call)
    for watch in watches:
        own = [f"/{n}" for n, (d, _, _) in enumerate(refused) if makers[d] == watch.pid]
        assert [denial.path for denial in told(watch)] == own
        assert watch.counted == len(own)
