"""Real programs with bashd-sh as their shell: first with bash, then with ours."""

from __future__ import annotations

import json
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.shell.conftest import Bench, Ran

pytestmark = pytest.mark.slow


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")


# --- make ----------------------------------------------------------------------------


def make(bench: Bench, shell: str, *words: str) -> Ran:
    need("make")
    return bench.run(["make", "--no-print-directory", f"SHELL={shell}", *words])


MAKEFILE = """\
export SHELL
.PHONY: all fail sub slow shell
all: one two
\t@echo all done; test -f one -a -f two
%.o: ; @echo $@ > $@
one two:
\t@echo making $@; echo $@ > $@
fail:
\techo before
\tfalse
\techo after
sub:
\t@$(MAKE) SHELL=$(SHELL) -C sub
outside:
\techo x > $(OUTSIDE)
slow:
\t@trap 'echo cleaned > cleaned; exit 1' TERM; echo up; while :; do sleep 0.05; done
shell:
\t@echo $(shell echo from the shell function)
.ONESHELL:
script:
\t@name=value
\techo $$name
"""


@pytest.fixture
def makefile(bench: Bench) -> Bench:
    bench.write("Makefile", MAKEFILE)
    parts = " ".join(f"p{n}" for n in range(6))
    lines = f"all: {parts}\n\t@ls p* | wc -l\n{parts}:\n\t@echo $@ > $@\n"
    bench.write("sub/Makefile", lines)
    return bench


@pytest.mark.parametrize("target", ["all", "fail", "sub", "shell", "script"])
@pytest.mark.parametrize("jobs", ["-j1", "-j3"])
def test_make(makefile: Bench, target: str, jobs: str) -> None:
    bash, ours = makefile.shells
    expected = make(makefile, bash, jobs, target)
    makefile.run(["rm", "-rf", "one", "two"])
    done = make(makefile, ours, jobs, target)
    assert sorted(done.stdout.splitlines()) == sorted(expected.stdout.splitlines())
    assert (done.stderr, done.status) == (expected.stderr, expected.status)


def test_make_inside_of_a_recipe_is_confined_too(makefile: Bench) -> None:
    outside = makefile.outside
    ours = makefile.shells[1]
    words = ["make", f"SHELL={ours}", f"OUTSIDE={outside}", "outside"]
    assert makefile.run(words).status == 2
    inner = f"make SHELL={ours} OUTSIDE={outside} outside"
    done = makefile.run([ours, "-c", inner])
    assert done.status == 2
    assert not outside.exists()
    assert makefile.run([ours, "-c", f"make -j2 SHELL={ours} all"]).status == 0


def test_make_that_is_interrupted_ends_its_recipes(makefile: Bench) -> None:
    need("make")
    words = ["make", f"SHELL={makefile.shells[1]}", "slow"]
    with makefile.popen(words, process_group=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode in {2, -signal.SIGTERM}
    cleaned = makefile.workspace / "cleaned"
    while not cleaned.exists():
        time.sleep(0.01)


# --- npm -----------------------------------------------------------------------------


def test_npm_run(bench: Bench) -> None:
    need("npm")
    outside = bench.outside
    scripts = {
        "ok": "echo out; echo err >&2; echo x > made",
        "fail": "exit 7",
        "args": 'echo "args:"',
        "outside": f"echo x > {outside}",
    }
    bench.write("package.json", json.dumps({"name": "x", "scripts": scripts}))

    def npm(shell: str, *words: str) -> Ran:
        options = ["--silent", "--no-update-notifier", f"--script-shell={shell}"]
        return bench.run(["npm", "run", *options, *words])

    for words in (["ok"], ["fail"], ["args", "--", "a b", "c"]):
        bash, ours = (npm(shell, *words) for shell in bench.shells)
        assert ours == bash
    assert npm(bench.shells[1], "outside").status == 1
    assert not outside.exists()


# --- git -----------------------------------------------------------------------------


def test_git_hooks(bench: Bench) -> None:
    need("git")
    outside = bench.outside
    results: list[list[tuple[int, str]]] = []
    for number, shell in enumerate(bench.shells):
        program = shutil.which(shell, path=bench.env()["PATH"])
        repository = bench.write(f"repo{number}/file", "text\n").parent

        def git(*words: str, where: object = repository) -> tuple[int, str]:
            names = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "gc.auto=0"]
            done = bench.run(["git", *names, *words], cwd=where)
            return done.status, done.stderr

        git("init", "-q", "-b", "main")
        git("init", "-q", "--bare", "../remote.git")
        hooks = {
            "pre-commit": 'echo checking >&2; test ! -f forbidden; exit "$?"',
            "commit-msg": 'grep -q good "$1"',
            "pre-push": "while read -r a b c d; do echo pushing $c >&2; done",
        }
        for name, line in hooks.items():
            bench.write(f"repo{number}/.git/hooks/{name}", f"#!{program}\n{line}\n")
            (repository / ".git" / "hooks" / name).chmod(0o755)
        seen = [
            git("add", "."),
            git("commit", "-qm", "bad"),
            git("commit", "-qm", "good"),
        ]
        seen.append(git("push", "-q", f"../repo{number}.copy", "main"))
        git("init", "-q", "--bare", f"../copy{number}.git")
        seen.append(git("push", "-q", f"../copy{number}.git", "main"))
        bench.write(f"repo{number}/forbidden", "")
        git("add", ".")
        seen.append(git("commit", "-qm", "good"))
        results.append(
            [(status, err.replace(str(number), "N")) for status, err in seen]
        )
    assert results[0] == results[1]
    assert [status for status, _ in results[1]] == [0, 1, 0, 128, 0, 1]
    hook = bench.workspace / "repo1" / ".git" / "hooks" / "pre-commit"
    hook.write_text(f"#!{bench.shells[1]}\necho x > {outside}\n")
    bench.run(["git", "commit", "-qm", "good"], cwd=bench.workspace / "repo1")
    assert not outside.exists()


# --- cron, GitHub ----------------------------------------------------------------------


def test_as_cron_calls_a_shell(bench: Bench) -> None:
    # Source: crontab(5): SHELL -c LINE in the home, with next to no environment.
    results: list[Ran] = []
    for shell in bench.shells:
        program = shutil.which(shell, path=bench.env()["PATH"]) or shell
        env = {
            "HOME": str(bench.workspace),
            "LOGNAME": bench.daemon.caller.name,
            "SHELL": program,
            "PATH": "/usr/bin:/bin",
            "BASHD_SOCKET": str(bench.daemon.socket),
        }
        line = 'echo "$HOME $LOGNAME $PATH"; cat; exit 3'
        results.append(bench.run([program, "-c", line], env=env, stdin="mail text\n"))
    assert results[0] == results[1]
    assert results[1].status == 3


def test_as_github_calls_a_shell(bench: Bench) -> None:
    # Source: GitHub's workflow syntax, `shell: bash` is this with {0} a script file.
    steps = [
        "echo one\nfalse | true\necho two\n",
        "set -x\nexit 9\n",
        "echo $UNSET end\n",
    ]
    for text in steps:
        script = bench.write("_temp/step.sh", text)
        options = ["--noprofile", "--norc", "-eo", "pipefail", str(script)]
        bench.both(*options)
        bench.both("-e", str(script))
