"""Who pays when output meets a cap."""

from __future__ import annotations

from bashd.daemon.output import OutputBudget
from bashd.daemon.output_budget import BLOCK_BYTES
from tests.unit.daemon.output_stage import full_pipe, pour

BLOCK = BLOCK_BYTES


class Tasks:
    """Background streams of one session, by name."""

    def __init__(self, made, budget):
        self._made = made
        self._budget = budget
        self.lost = []

    def start(self, name, data=b""):
        store = self._made.store(
            in_file=True,
            cap=100,
            spill=100 * BLOCK,
            budget=self._budget,
            on_lost=lambda: self.lost.append(name),
        )
        pour(store, data)
        return store

    def finished(self, name, blocks):
        store = self.start(name, b"x" * (blocks * BLOCK))
        store.settle()
        return store


def test_files_are_charged_in_whole_blocks(made):
    budget = OutputBudget(10 * BLOCK)
    store = Tasks(made, budget).start("a", b"x")
    assert budget.used_bytes == BLOCK
    pour(store, b"x" * BLOCK)
    assert budget.used_bytes == 2 * BLOCK
    store.discard()
    assert budget.used_bytes == 0


def test_the_oldest_finished_output_goes_first_and_only_as_much_as_needed(made):
    tasks = Tasks(made, OutputBudget(4 * BLOCK))
    first, second = tasks.finished("first", 2), tasks.finished("second", 1)
    running = tasks.start("running", b"y" * 2 * BLOCK)
    assert tasks.lost == ["first"]
    assert len(made.files()) == 2
    assert running.total == 2 * BLOCK
    assert running.read_range(0, BLOCK).data == b"y" * BLOCK
    assert second.settle().spill_path is not None
    gone = first.read(0)
    assert (gone.data, gone.lossy, first.total) == (b"", True, 2 * BLOCK)
    assert first.settle().spill_path is None


def test_order_is_that_of_finishing(made):
    tasks = Tasks(made, OutputBudget(2 * BLOCK))
    early, late = tasks.start("early", b"x"), tasks.start("late", b"x")
    late.settle()
    early.settle()
    tasks.start("new", b"x")
    assert tasks.lost == ["late"]


def test_with_nothing_finished_the_flood_pays_and_not_the_quiet_neighbour(made):
    tasks = Tasks(made, OutputBudget(4 * BLOCK))
    flood = tasks.start("flood", b"f" * 3 * BLOCK)
    tasks.start("other", b"o" * BLOCK)
    quiet = tasks.start("quiet", b"hello")
    assert tasks.lost == ["flood"]
    assert quiet.tail() == b"hello"
    pour(flood, b"still counted")
    output = flood.settle()
    assert output.text == "f" * 87 + "still counted"
    assert (output.truncated, output.spill_path) == (True, None)
    assert output.bytes == 3 * BLOCK + 13


def test_a_writer_alone_at_the_cap_goes_on_without_its_file(made):
    budget = OutputBudget(2 * BLOCK)
    tasks = Tasks(made, budget)
    store = tasks.start("alone", b"a" * 2 * BLOCK)
    assert store.spill_path is not None
    pour(store, b"b" * 3 * BLOCK)
    assert tasks.lost == ["alone"]
    assert (store.total, store.tail()) == (5 * BLOCK, b"b" * 100)
    assert (made.files(), budget.used_bytes) == ([], 0)


def test_a_session_cap_never_costs_another_session(made):
    whole = OutputBudget(100 * BLOCK)
    one = Tasks(made, OutputBudget(2 * BLOCK, parent=whole))
    two = Tasks(made, OutputBudget(2 * BLOCK, parent=whole))
    kept = two.finished("kept", 2)
    one.finished("old", 2)
    one.start("new", b"x" * 2 * BLOCK)
    assert (one.lost, two.lost) == (["old"], [])
    assert kept.read_range(0, 5).data == b"xxxxx"
    assert whole.used_bytes == 4 * BLOCK


def test_the_daemons_cap_takes_the_oldest_finished_of_all_sessions(made):
    whole = OutputBudget(3 * BLOCK)
    one = Tasks(made, OutputBudget(100 * BLOCK, parent=whole))
    two = Tasks(made, OutputBudget(100 * BLOCK, parent=whole))
    one.finished("oldest", 1)
    two.finished("younger", 2)
    two.start("new", b"x")
    assert (one.lost, two.lost) == (["oldest"], [])


def test_a_foreground_spill_over_the_cap_keeps_its_window(made):
    budget = OutputBudget(BLOCK)
    store = made.store(cap=100, spill=100 * BLOCK, budget=budget)
    store.write(b"a" * BLOCK)
    assert store.spill_path is not None
    store.write(b"b" * BLOCK)
    output = store.settle()
    assert (output.text, output.spill_path) == ("b" * 100, None)
    assert (made.files(), budget.used_bytes) == ([], 0)


def test_an_advertised_foreground_file_may_go_for_another(made):
    budget = OutputBudget(BLOCK)
    store = made.store(cap=100, spill=100 * BLOCK, budget=budget)
    store.write(b"a" * BLOCK)
    assert store.settle().spill_path is not None
    Tasks(made, budget).start("new", b"x")
    output = store.settle()
    assert (output.text, output.spill_path) == ("a" * 100, None)


def test_a_file_given_up_under_a_move_keeps_the_exact_window(made):
    budget = OutputBudget(3 * BLOCK)
    tasks = Tasks(made, budget)
    store = tasks.start("moving", b"a" * 2 * BLOCK)
    with full_pipe(b"moved") as (reader, _):
        move = store.begin(BLOCK)
        tasks.start("new", b"x")
        assert tasks.lost == ["moving"]
        assert store.tail() == b"a" * 100
        moved = move.run(reader)
        store.commit(move, moved)
    assert store.tail() == b"a" * 95 + b"moved"
    assert store.total == 2 * BLOCK + 5
    assert budget.used_bytes == BLOCK
    assert len(made.files()) == 1


def test_sliding_files_are_charged_for_what_they_keep(made):
    budget = OutputBudget(1 << 30)
    store = made.store(in_file=True, cap=100, spill=BLOCK, budget=budget)
    pour(store, b"x" * (4 << 20))
    assert budget.used_bytes < 2 << 20
    store.settle()
    assert budget.used_bytes == BLOCK
