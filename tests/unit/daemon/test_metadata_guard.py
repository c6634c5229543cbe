"""What the check after a command finds and undoes, without a command: the test writes.

*deep* is the landlock runner's way, where nothing else keeps contents. The other is
bwrap's: what is mounted read-only counts as kept as long as it is in place.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from bashd.core.metadata import ASIDE, Findings, Kind, Target
from bashd.daemon import survey
from bashd.daemon.identity import Identity, run_as
from bashd.daemon.metadata import MetadataGuard
from bashd.daemon.settlement import Settlement
from bashd.daemon.snapshot import NOTHING

PROTECTED = (
    *(".git/hooks", ".git/config", ".git/config.worktree"),
    *(".vscode", ".envrc", ".codex", ".config/git"),
)
EVIL = "#!/bin/sh\necho evil\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "home"
    folder.mkdir()
    return folder


def make_repository(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True, timeout=30)
    return folder


def write(path: Path, text: str = EVIL, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture(params=[True, False], ids=["deep", "mounted"])
def deep(request: pytest.FixtureRequest) -> bool:
    return request.param


Check = Callable[[Callable[[], object]], Findings]


@pytest.fixture
def check(workspace: Path, home: Path, deep: bool) -> Iterator[Check]:
    """Run something as a command would, between `begin` and `settle`."""
    identity = Identity(
        os.getuid(), os.getgid(), tuple(os.getgroups()), "me", str(home)
    )
    guard = MetadataGuard(identity, deep=deep)

    async def run(work: Callable[[], object]) -> Findings:
        asked = survey.Question(
            *(str(workspace), os.getuid(), str(home), f"{home}/.config"),
            protected=PROTECTED,
            repositories=guard.repositories,
        )
        await guard.prepare(asked)
        ticket = await guard.begin(survey.look(asked))
        work()
        return await ticket.settle("0123456789abcdef", None)

    yield lambda work: trio.run(run, work)
    guard.close()


def paths(findings: Findings) -> set[str]:
    return {str(denial.path) for denial in findings.denials}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def asides(folder: Path) -> list[str]:
    return [name for name in names(folder) if ASIDE in name]


def test_nothing_is_found_where_nothing_happened(check: Check, workspace: Path):
    make_repository(workspace)
    assert not check(lambda: None)
    assert not check(lambda: write(workspace / "source.c", "int x;"))
    assert names(workspace) == [".git", "source.c"]


@pytest.mark.parametrize("name", [".envrc", ".codex/config.toml", ".vscode/tasks.json"])
def test_a_protected_name_that_was_missing_is_put_aside(
    check: Check, workspace: Path, name: str
):
    found = check(lambda: write(workspace / name))
    top = name.partition("/")[0]
    assert paths(found) == {str(workspace / top)}
    assert not (workspace / top).exists()
    (kept,) = asides(workspace)
    assert (
        "evil"
        in next(
            p for p in (workspace / kept, *(workspace / kept).rglob("*")) if p.is_file()
        ).read_text()
    )
    assert kept in found.notes[0]


def test_a_repository_born_in_the_call_keeps_working_without_its_hooks(
    check: Check, workspace: Path
):
    hook = workspace / ".git/hooks/post-checkout"

    def work() -> None:
        make_repository(workspace)
        write(hook)

    found = check(work)
    assert paths(found) == {str(hook)}
    assert found.denials[0].operation == "execute"
    assert not os.access(hook, os.X_OK)
    assert os.access(workspace / ".git/hooks/pre-commit.sample", os.X_OK)
    assert not check(lambda: None)


def test_a_nested_clone_and_its_code_running_keys_are_reported(
    check: Check, workspace: Path
):
    make_repository(workspace)
    nested = workspace / "vendor/deep/er/lib"
    hook = nested / ".git/hooks/pre-commit"

    def work() -> None:
        make_repository(nested)
        write(hook)
        git = ["git", "-C", str(nested), "config", "core.pager", "evil"]
        subprocess.run(git, check=True, timeout=30)

    found = check(work)
    assert paths(found) == {str(hook)}
    assert any("core.pager" in note for note in found.notes)
    assert "pager" in (nested / ".git/config").read_text()


def test_a_copied_repository_is_a_new_one(check: Check, workspace: Path):
    make_repository(workspace)
    own = write(workspace / ".git/hooks/pre-commit")
    check(lambda: None)
    copy = workspace / "copy"
    found = check(
        lambda: (
            subprocess.run(["cp", "-r", str(workspace / ".git"), str(copy)], check=True)
            and copy.rename(workspace / "sub.git")
        )
    )
    # Named neither .git nor anything: a bare repository, to which git goes as well.
    assert paths(found) == {str(workspace / "sub.git/hooks/pre-commit")}
    assert os.access(own, os.X_OK)


def test_a_moved_repository_keeps_its_hooks(check: Check, workspace: Path):
    nested = make_repository(workspace / "a/nested")
    hook = write(nested / ".git/hooks/pre-commit")
    assert not check(lambda: None)
    found = check(lambda: (workspace / "a").rename(workspace / "b"))
    assert not found
    assert os.access(workspace / "b/nested/.git/hooks/pre-commit", os.X_OK)
    assert not hook.exists()


def test_hooks_behind_a_link_are_disarmed_where_they_are(check: Check, workspace: Path):
    def work() -> None:
        make_repository(workspace)
        for path in (workspace / ".git/hooks").iterdir():
            path.unlink()
        (workspace / ".git/hooks").rmdir()
        write(workspace / "mine/pre-commit")
        (workspace / ".git/hooks").symlink_to("../mine")

    found = check(work)
    assert paths(found) == {str(workspace / "mine/pre-commit")}
    assert not os.access(workspace / ".git/hooks/pre-commit", os.X_OK)


def test_a_git_file_that_names_a_folder_of_another_name_is_followed(
    check: Check, workspace: Path
):
    def work() -> None:
        make_repository(workspace / "x")
        (workspace / "x/.git").rename(workspace / "innocent")
        (workspace / "x/.git").write_text("gitdir: ../innocent\n")
        write(workspace / "innocent/hooks/post-merge")

    found = check(work)
    assert paths(found) == {str(workspace / "innocent/hooks/post-merge")}


def test_a_submodule_born_in_the_call_is_found_inside_the_repository(
    check: Check, workspace: Path
):
    make_repository(workspace)
    check(lambda: None)
    hook = workspace / ".git/modules/lib/part/hooks/post-checkout"

    def work() -> None:
        make_repository(workspace / "elsewhere")
        hook.parents[2].mkdir(parents=True)
        (workspace / "elsewhere/.git").rename(hook.parents[1])
        write(hook)

    found = check(work)
    assert paths(found) == {str(hook)}


def test_a_pipe_or_a_loop_in_place_of_git_metadata_holds_nothing_up(
    check: Check, workspace: Path
):
    def work() -> None:
        os.mkfifo(workspace / ".git")
        (workspace / "sub").mkdir()
        (workspace / "sub/.git").symlink_to(".git")
        os.mkfifo(workspace / ".envrc")

    found = check(work)
    assert paths(found) == {str(workspace / ".envrc")}


def test_what_the_user_does_between_commands_is_the_new_state(
    check: Check, workspace: Path
):
    make_repository(workspace)
    check(lambda: None)
    own = write(workspace / ".git/hooks/pre-commit", "#!/bin/sh\n")
    write(workspace / ".vscode/settings.json", "{}", 0o644)
    nested = write(make_repository(workspace / "n") / ".git/hooks/pre-push")
    assert not check(lambda: None)
    assert not check(lambda: write(workspace / "note"))
    assert os.access(own, os.X_OK)
    assert os.access(nested, os.X_OK)
    assert (workspace / ".vscode/settings.json").read_text() == "{}"


def test_harmless_settings_may_change_while_a_command_runs(
    check: Check, workspace: Path
):
    make_repository(workspace)
    check(lambda: None)

    def set_user() -> None:
        git = ["git", "-C", str(workspace), "config", "user.name", "somebody"]
        subprocess.run(git, check=True, timeout=30)

    assert not check(set_user)
    assert "somebody" in (workspace / ".git/config").read_text()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("core.fsmonitor", "./x"),
        ("core.hooksPath", ".h"),
        ("filter.x.clean", "sh -c id"),
        ("alias.st", "!id"),
        ("remote.origin.url", "https://example.invalid/x"),
    ],
)
def test_settings_that_run_code_or_redirect_are_put_back(
    check: Check, workspace: Path, key: str, value: str
):
    make_repository(workspace)
    check(lambda: None)
    before = (workspace / ".git/config").read_text()

    def change() -> None:
        # As git does it: a lock file, renamed over the configuration.
        git = ["git", "-C", str(workspace), "config", key, value]
        subprocess.run(git, check=True, timeout=30)

    found = check(change)
    assert paths(found) == {str(workspace / ".git/config")}
    assert (workspace / ".git/config").read_text() == before
    assert (
        key.partition(".")[0]
        in (workspace / ".git" / asides(workspace / ".git")[0]).read_text()
    )


class TestWhereNothingElseKeepsContents:
    """The landlock runner: every change of contents is found and undone."""

    @pytest.fixture
    def deep(self) -> bool:
        return True

    def test_a_moved_repository_cannot_bring_another_hook_along(
        self, check: Check, workspace: Path
    ):
        nested = make_repository(workspace / "a/nested")
        write(nested / ".git/hooks/pre-commit", "#!/bin/sh\n")

        def work() -> None:
            (workspace / "a").rename(workspace / "b")
            write(workspace / "b/nested/.git/hooks/pre-commit", EVIL)

        check(lambda: None)
        assert paths(check(work))
        moved = workspace / "b/nested/.git/hooks/pre-commit"
        assert not moved.exists() or not os.access(moved, os.X_OK)

    def test_a_changed_hook_is_put_back(self, check: Check, workspace: Path):
        make_repository(workspace)
        hook = write(workspace / ".git/hooks/pre-push", "#!/bin/sh\nexit 1\n")
        check(lambda: None)
        found = check(lambda: write(hook))
        assert paths(found) == {str(hook)}
        assert hook.read_text() == "#!/bin/sh\nexit 1\n"
        assert os.access(hook, os.X_OK)
        (kept,) = asides(hook.parent)
        assert not os.access(hook.parent / kept, os.X_OK)

    def test_a_removed_hook_is_put_back(self, check: Check, workspace: Path):
        make_repository(workspace)
        hook = write(workspace / ".git/hooks/pre-push", "#!/bin/sh\nexit 1\n")
        check(lambda: None)
        found = check(hook.unlink)
        assert paths(found) == {str(hook)}
        assert hook.read_text() == "#!/bin/sh\nexit 1\n"
        assert os.access(hook, os.X_OK)

    def test_a_removed_hook_folder_is_put_back(self, check: Check, workspace: Path):
        make_repository(workspace)
        hook = write(workspace / ".git/hooks/pre-push", "#!/bin/sh\nexit 1\n")
        check(lambda: None)
        check(lambda: subprocess.run(["rm", "-r", str(hook.parent)], check=True))
        assert hook.read_text() == "#!/bin/sh\nexit 1\n"

    def test_an_armed_hook_is_disarmed(self, check: Check, workspace: Path):
        make_repository(workspace)
        hook = write(workspace / ".git/hooks/pre-push", EVIL, 0o644)
        check(lambda: None)
        found = check(lambda: hook.chmod(0o755))
        assert paths(found) == {str(hook)}
        assert not os.access(hook, os.X_OK)

    def test_a_folder_gets_back_what_was_in_it(self, check: Check, workspace: Path):
        vscode = workspace / ".vscode"
        tasks = write(vscode / "tasks.json", "{}", 0o644)
        write(vscode / "deep/launch.json", "{1}", 0o640)
        (vscode / "link").symlink_to("tasks.json")
        check(lambda: None)

        def work() -> None:
            tasks.write_text("evil")
            (vscode / "link").unlink()
            write(vscode / "new.json")
            subprocess.run(["rm", "-r", str(vscode / "deep")], check=True)

        found = check(work)
        assert paths(found) == {
            str(vscode / name)
            for name in ("tasks.json", "link", "new.json", "deep", "deep/launch.json")
        }
        assert tasks.read_text() == "{}"
        assert (vscode / "deep/launch.json").read_text() == "{1}"
        assert (vscode / "deep/launch.json").stat().st_mode & 0o777 == 0o640
        assert (vscode / "link").readlink() == Path("tasks.json")
        assert not (vscode / "new.json").exists()
        assert not check(lambda: None)

    def test_a_folder_that_became_a_link_is_put_back(
        self, check: Check, workspace: Path
    ):
        tasks = write(workspace / ".vscode/tasks.json", "{}", 0o644)
        write(workspace / "evil/tasks.json")
        check(lambda: None)

        def work() -> None:
            (workspace / ".vscode").rename(workspace / "gone")
            (workspace / ".vscode").symlink_to("evil")

        check(work)
        assert not (workspace / ".vscode").is_symlink()
        assert tasks.read_text() == "{}"

    def test_a_parent_that_became_a_link_leads_nowhere(
        self, check: Check, workspace: Path, tmp_path: Path
    ):
        """What is put back must not land where the command pointed."""
        make_repository(workspace)
        check(lambda: None)
        victim = tmp_path.resolve() / "victim"
        victim.mkdir()
        (victim / "config").write_text("precious")

        def work() -> None:
            (workspace / ".git").rename(workspace / "moved")
            (workspace / ".git").symlink_to(victim)

        check(work)
        assert (victim / "config").read_text() == "precious"
        assert names(victim) == ["config"]

    def test_a_folder_that_holds_too_much_is_said_to(
        self, check: Check, workspace: Path
    ):
        for number in range(1100):
            write(workspace / f".vscode/{number}", "x", 0o644)
        check(lambda: None)
        found = check(lambda: write(workspace / ".vscode/1", "evil"))
        assert not found.denials
        assert not asides(workspace / ".vscode")
        assert len(names(workspace / ".vscode")) == 1100


class TestUnderMounts:
    """The bwrap runner: only what lost its mount is looked into."""

    @pytest.fixture
    def deep(self) -> bool:
        return False

    def test_what_is_in_place_was_changed_by_the_host(
        self, check: Check, workspace: Path
    ):
        make_repository(workspace)
        hook = write(workspace / ".git/hooks/pre-push", "#!/bin/sh\n")
        write(workspace / ".vscode/tasks.json", "{}", 0o644)
        check(lambda: None)

        def work() -> None:
            write(hook, "#!/bin/sh\nexit 0\n")
            write(workspace / ".git/hooks/pre-commit")
            write(workspace / ".vscode/tasks.json", "{1}", 0o644)

        assert not check(work)
        assert os.access(workspace / ".git/hooks/pre-commit", os.X_OK)

    def test_hooks_in_a_folder_that_was_replaced_are_disarmed(
        self, check: Check, workspace: Path
    ):
        make_repository(workspace)
        own = write(workspace / ".git/hooks/pre-push", "#!/bin/sh\n")
        check(lambda: None)

        def work() -> None:
            own.parent.rename(workspace / ".git/old")
            write(own, "#!/bin/sh\n")
            write(own.parent / "pre-commit")

        found = check(work)
        assert paths(found) == {str(own.parent / "pre-commit")}
        assert os.access(own, os.X_OK)

    def test_a_file_that_lost_its_mount_is_reported(
        self, check: Check, workspace: Path
    ):
        envrc = write(workspace / ".envrc", "one", 0o644)
        check(lambda: None)

        def work() -> None:
            write(workspace / "new", "two", 0o644).rename(envrc)

        found = check(work)
        assert not found.denials
        assert str(envrc) in found.notes[0]
        assert envrc.read_text() == "two"


def test_what_a_leftover_does_later_is_still_the_sandboxes(workspace: Path, home: Path):
    """``(sleep 1; plant) &``: the shell is gone when it happens."""
    identity = Identity(
        os.getuid(), os.getgid(), tuple(os.getgroups()), "me", str(home)
    )
    guard = MetadataGuard(identity, deep=False)
    asked = survey.Question(
        *(str(workspace), os.getuid(), str(home), f"{home}/.config"),
        protected=PROTECTED,
    )

    class Left:
        def was_real(self) -> bool:
            return True

        def is_gone(self) -> bool:
            return True

    async def main() -> Findings:
        await guard.prepare(asked)
        seen = survey.look(asked)
        ticket = await guard.begin(seen)
        await ticket.settle("first", Left())  # type: ignore[arg-type]
        write(workspace / ".envrc")
        ticket = await guard.begin(seen)
        assert not (workspace / ".envrc").exists()
        return await ticket.settle("second", None)

    assert paths(trio.run(main)) == {str(workspace / ".envrc")}
    guard.close()


def test_one_command_does_not_take_anothers_changes_for_the_users(
    workspace: Path, home: Path
):
    identity = Identity(
        os.getuid(), os.getgid(), tuple(os.getgroups()), "me", str(home)
    )
    guard = MetadataGuard(identity, deep=True)
    asked = survey.Question(
        *(str(workspace), os.getuid(), str(home), f"{home}/.config"),
        protected=PROTECTED,
    )

    async def main() -> Findings:
        await guard.prepare(asked)
        seen = survey.look(asked)
        first = await guard.begin(seen)
        write(workspace / ".envrc")
        second = await guard.begin(seen)
        found = await second.settle("second", None)
        return found + await first.settle("first", None)

    found = trio.run(main)
    assert [str(denial.path) for denial in found.denials] == [str(workspace / ".envrc")]
    guard.close()


def test_a_hook_that_can_be_run_but_not_read_is_put_aside(tmp_path: Path):
    hook = write(tmp_path.resolve() / "pre-push", EVIL, 0o111)
    if os.geteuid() == 0:
        # Root reads everything; the daemon is somebody else at that moment.
        nobody = Identity(65534, 65534, (), "nobody", "/")
        for path in (hook, *hook.parents[:3]):
            path.chmod(0o111 if path == hook else 0o755)
        os.chown(hook, nobody.uid, nobody.gid)
        os.chown(hook.parent, nobody.uid, nobody.gid)
    else:
        nobody = Identity(os.getuid(), os.getgid(), (), "me", "/")
    target = Target(str(hook.parent), Kind.HOOKS, "/")
    settlement = Settlement("0123456789", act=True, known={})

    async def main() -> None:
        await run_as(
            nobody,
            lambda: settlement.check(target, NOTHING, is_new=True, mounted=False),
        )

    trio.run(main)
    assert paths(settlement.findings) == {str(hook)}
    assert not hook.exists()


def test_a_file_whose_mount_is_known_to_be_lost_is_looked_into(
    workspace: Path, home: Path
):
    """The cell is kept for a moment although the host has replaced the file."""
    make_repository(workspace)
    config = workspace / ".git/config"
    identity = Identity(
        os.getuid(), os.getgid(), tuple(os.getgroups()), "me", str(home)
    )
    guard = MetadataGuard(identity, deep=False)
    asked = survey.Question(
        *(str(workspace), os.getuid(), str(home), f"{home}/.config"),
        protected=PROTECTED,
    )

    async def main() -> Findings:
        await guard.prepare(asked)
        ticket = await guard.begin(survey.look(asked), frozenset({str(config)}))
        config.write_text(config.read_text() + "[core]\n\tpager = evil\n")
        return await ticket.settle("0123456789", None)

    assert paths(trio.run(main)) == {str(config)}
    assert "pager" not in config.read_text()
    guard.close()


@pytest.mark.trio
async def test_where_nothing_happened_a_command_begins_at_once(
    workspace: Path, home: Path
):
    make_repository(workspace)
    identity = Identity(
        os.getuid(), os.getgid(), tuple(os.getgroups()), "me", str(home)
    )
    guard = MetadataGuard(identity, deep=False)
    asked = survey.Question(
        *(str(workspace), os.getuid(), str(home), f"{home}/.config"),
        protected=PROTECTED,
    )
    await guard.prepare(asked)
    seen = survey.look(asked)
    await guard.begin(seen)
    with pytest.raises(StopIteration) as done:
        guard.begin(seen).send(None)
    assert done.value.value.mounted == {path for path, _ in seen.found.protected}
    write(workspace / ".envrc")
    # Now there is something to look at, and that is a turn of the loop.
    beginning = guard.begin(seen)
    beginning.send(None)
    beginning.close()
    guard.close()
