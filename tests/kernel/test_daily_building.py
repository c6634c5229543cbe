"""Compilers, debuggers, test runners and databases work behind the walls."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from tests.support.stations import (
    CONFINING,
    ROOT_BWRAP,
    SERVED_LANDLOCK,
    USER_BWRAP,
    USER_LANDLOCK,
    Station,
    on,
    sys_python,
)

if TYPE_CHECKING:
    from tests.support.stage import Install

FOUR = on(ROOT_BWRAP, USER_BWRAP, USER_LANDLOCK, SERVED_LANDLOCK)
"""Root and an ordinary user on both runners."""

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
int halve(int number) { return number / 2; }
int main(int count, char **words) {
    int *numbers = malloc(4 * sizeof *numbers);
    numbers[count > 1 ? 4 : 0] = count;
    printf("%d\\n", halve(84));
    free(numbers);
}
"""
"""Writes past its memory when it is given an argument."""


@pytest.fixture
def program(station: Station) -> Station:
    """A station with a C program in its workspace."""
    station.make("workspace/program.c", PROGRAM)
    return station


@FOUR
def test_make_builds_in_parallel_and_builds_nothing_twice(program: Station):
    names = [f"part{number}" for number in range(8)]
    rules = f"all: {' '.join(names)}\n%: program.c\n\tcc -o $@ $<\n"
    program.make("workspace/Makefile", rules)
    assert program.run("make -s -j 4").exit_code == 0
    assert program.text("./part7; make -q && echo done") == "42\ndone\n"


@FOUR
def test_a_sanitizer_finds_what_it_is_for(program: Station):
    build = "gcc -g -fsanitize=address,undefined -o checked program.c"
    assert program.run(build).exit_code == 0
    assert program.text("./checked") == "42\n"
    found = program.run("./checked past-the-end")
    assert found.exit_code == 1
    assert "heap-buffer-overflow" in found.stderr.text
    assert "program.c:7" in found.stderr.text
    assert found.sandbox is not None
    assert not found.sandbox.denied


@FOUR
def test_gdb_stops_in_a_function_and_reads_its_arguments(program: Station):
    assert program.run("gcc -g -o program program.c").exit_code == 0
    commands = ("break halve", "run", "print number", "bt 2", "continue")
    words = " ".join(f"-ex {shlex.quote(command)}" for command in commands)
    result = program.run(f"gdb -nx --batch {words} ./program", timeout_ms=50_000)
    assert result.exit_code == 0, result
    said = result.stdout.text
    assert "$1 = 84" in said
    assert "in main (count=1" in said
    assert "exited normally" in said


@FOUR
@pytest.mark.parametrize("mode", CONFINING)
def test_strace_follows_children(station: Station, mode: str):
    result = station.run(
        "strace -f -e trace=execve -o $TMPDIR/log bash -c 'true; /bin/true' &&"
        " grep -c execve $TMPDIR/log",
        mode,
    )
    assert result.stdout.text == "2\n", result


@FOUR
def test_sqlite_keeps_a_journal_and_its_locks(station: Station):
    script = """
        set -e
        sqlite3 base 'PRAGMA journal_mode = WAL; CREATE TABLE numbers (number)'
        for writer in 1 2 3 4; do
            (for n in $(seq 10); do
                sqlite3 -cmd '.timeout 20000' base "INSERT INTO numbers VALUES ($n)"
            done) &
        done
        wait
        sqlite3 base 'SELECT count(*), sum(number) FROM numbers; PRAGMA integrity_check'
    """
    said = station.text(script, timeout_ms=50_000)
    assert said.split() == ["wal", "40|220", "ok"]
    # Others' bases can be read, and not written to.
    station.as_caller("sqlite3", "outside/base", "CREATE TABLE mine (x)")
    base = station.outside / "base"
    assert station.text(f"sqlite3 'file:{base}?immutable=1' .tables") == "mine\n"
    refused = station.run(f"sqlite3 {base} 'DROP TABLE mine'")
    assert refused.exit_code != 0
    assert "readonly" in refused.stderr.text


@on(ROOT_BWRAP, USER_LANDLOCK, SERVED_LANDLOCK)
def test_pytest_runs_tests_in_processes_of_its_own(station: Station, install: Install):
    tests = "import os, pytest\n@pytest.mark.parametrize('n', range(8))\n"
    tests += "def test_number(n, worker_id, tmp_path):\n"
    tests += "    (tmp_path / 'x').write_text(worker_id)\n    assert n < 7, worker_id\n"
    station.make("workspace/test_numbers.py", tests)
    station.make("workspace/pytest.ini", "[pytest]\n")
    # Of the installation's plugins only this one; and no refused caches beside them.
    environ = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = f"{install.python} -m pytest -q -p xdist -n 2"
    result = station.run(command, env=environ, timeout_ms=50_000)
    assert result.exit_code == 1, result
    assert "1 failed, 7 passed" in result.stdout.text
    workers = {word for word in ("gw0", "gw1") if word in result.stdout.text}
    assert workers, result
    assert result.sandbox is not None
    assert not result.sandbox.denied


@FOUR
@pytest.mark.parametrize("mode", CONFINING)
def test_nested_interpreters_and_pipelines(station: Station, mode: str):
    nested = f'{sys_python()} -c \'import os; os.system("perl -e \\"print 6*7\\"")\''
    command = f"bash -c 'sh -c \"{sys_python()} -c 1\" && echo deep' && {nested}"
    assert station.text(command, mode) == "deep\n42"
    archive = "tar c -C /etc hostname hosts | gzip | tee >(cat > /dev/null) | tar tz"
    assert station.text(archive, mode) == "hostname\nhosts\n"
