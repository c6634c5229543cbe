"""What somebody outside runs on the user's behalf stays the user's: hooks and the like.

Under bwrap mounts keep most of it; what they cannot keep, and everything under landlock,
is undone or disarmed when the command has settled, and reported with its path.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bashd.core.metadata import ASIDE
from tests.adversarial.attack import with_policies
from tests.support.stations import (
    FULL_ACCESS,
    READ_ONLY,
    SERVED_BWRAP,
    SERVED_LANDLOCK,
    UNDER_BWRAP,
    Station,
    on,
)

if TYPE_CHECKING:
    from bashd.core.model import RunResult

GIT = (
    "git -c user.name=a -c user.email=a@b -c init.defaultBranch=main"
    " -c protocol.file.allow=always"
)


def git(station: Station, *arguments: str, cwd: Path | None = None) -> None:
    """Run git on the host, as the caller."""
    own = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    own += ["-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"]
    done = station.as_caller(*own, "-C", str(cwd or station.workspace), *arguments)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def repository(station: Station) -> Path:
    git(station, "init", "-q")
    git(station, "commit", "-q", "--allow-empty", "-m", "first")
    return station.workspace / ".git"


def plant(path: str) -> str:
    return f"mkdir -p $(dirname {path}) && echo '#!/bin/sh' > {path} && chmod +x {path}"


HOST_RUNS = {
    "a hook": (plant(".git/hooks/post-checkout"), ".git/hooks"),
    "a watcher": ("git config core.fsmonitor ./x", ".git/config"),
    "hooks elsewhere": ("git config core.hooksPath .h", ".git/config"),
    "a filter": ("git config filter.x.clean id", ".git/config"),
    "an alias": ("printf '[alias]\\nst = !id\\n' >> .git/config", ".git/config"),
    "a submodule's hook": (
        plant(".git/modules/x/hooks/post-checkout"),
        ".git/modules/x/hooks",
    ),
    "an environment": ("echo id > .envrc", ".envrc"),
    "an editor's task": ("mkdir .vscode; echo {} > .vscode/tasks.json", ".vscode"),
    "a server of tools": ("echo {} > .mcp.json", ".mcp.json"),
    "an agent's settings": (
        "mkdir .claude; echo {} > .claude/settings.json",
        ".claude",
    ),
    "another agent's": ("mkdir .codex; echo x > .codex/config.toml", ".codex"),
}


def test_e16_what_the_host_would_run_is_not_planted(station: Station, repository: Path):
    git(station, "init", "-q", "--bare", str(repository / "modules/x"))
    for what, (command, path) in HOST_RUNS.items():
        target = station.workspace / path
        before = _state(target)
        free = station.run(command, FULL_ACCESS)
        assert free.exit_code == 0, (what, free)
        assert _state(target) != before, f"{what}: without walls it must work"
        _put_back(station, target, before)

        result = station.run(command)
        assert _harmless(target, before), what
        assert result.sandbox is not None
        assert result.sandbox.denied, what
        named = [str(denial.path) for denial in result.sandbox.denials]
        assert any(name.startswith(str(target)) for name in named), (what, named)
        # It is policy, and the text says how it was kept where it was undone.
        if result.exit_code == 0:
            assert any(str(target) in hint for hint in result.sandbox.hints), what


def _state(path: Path) -> object:
    if path.is_dir():
        return {
            str(p.relative_to(path)): (
                p.stat().st_mode,
                p.read_bytes() if p.is_file() else b"",
            )
            for p in sorted(path.rglob("*"))
        }
    return path.read_bytes() if path.exists() else None


def _put_back(station: Station, path: Path, before: object) -> None:
    station.run(f"rm -rf {path}", FULL_ACCESS)
    if isinstance(before, dict):
        path.mkdir(exist_ok=True)
        for name, (mode, content) in before.items():
            (path / name).write_bytes(content)
            (path / name).chmod(mode)
    elif isinstance(before, bytes):
        path.write_bytes(before)
    if path.exists():
        for each in (path, *(path.rglob("*") if path.is_dir() else ())):
            os.chown(each, station.caller.uid, station.caller.gid)


def _harmless(path: Path, before: object) -> bool:
    """Whether nothing at *path* is run that was not run before."""
    now = _state(path)
    if now == before:
        return True
    if not isinstance(now, dict) or not isinstance(before, dict):
        return False
    new = {name for name in now if now[name] != before.get(name) and ASIDE not in name}
    return not any(now[name][0] & 0o111 for name in new)


def test_e17_a_repository_born_in_a_call_is_disarmed_and_then_protected(
    station: Station,
):
    hook = station.workspace / ".git/hooks/pre-commit"
    born = station.run(f"{GIT} init -q . && {plant('.git/hooks/pre-commit')}")
    assert born.exit_code == 0, born
    assert not os.access(hook, os.X_OK)
    assert born.sandbox is not None
    assert born.sandbox.denied
    assert str(hook) in {str(denial.path) for denial in born.sandbox.denials}
    # It works, and from now on it is protected.
    assert station.run(f"{GIT} commit -q --allow-empty -m x").exit_code == 0
    later = station.run(plant(".git/hooks/pre-push"))
    assert not os.access(station.workspace / ".git/hooks/pre-push", os.X_OK)
    assert later.sandbox is not None
    assert later.sandbox.denied


def test_i01_the_whole_line_works(station: Station):
    line = (
        "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty"
        " -m x && git stash list && echo OK"
    )
    result = station.run(line)
    assert result.stdout.text == "OK\n"
    assert result.sandbox is not None
    assert not result.sandbox.denied
    assert not result.sandbox.hints


def test_a_nested_clone_brings_its_own_hooks_in_vain(
    station: Station, repository: Path
):
    other = station.give(station.folder / "outside/other")
    git(station, "init", "-q", cwd=other)
    git(station, "commit", "-q", "--allow-empty", "-m", "x", cwd=other)
    nested = station.workspace / "vendor/lib"
    clone = (
        f"{GIT} clone -q {other} vendor/lib && {plant('vendor/lib/.git/hooks/post-merge')}"
        " && git -C vendor/lib config core.sshCommand id"
    )
    result = station.run(clone)
    assert result.exit_code == 0, result
    assert not os.access(nested / ".git/hooks/post-merge", os.X_OK)
    assert result.sandbox is not None
    assert any("core.sshcommand" in hint for hint in result.sandbox.hints)
    # The next command finds it protected.
    station.run(plant("vendor/lib/.git/hooks/pre-push"))
    assert not os.access(nested / ".git/hooks/pre-push", os.X_OK)
    assert station.text("git -C vendor/lib log --oneline | wc -l") == "1\n"


def test_a_parent_that_is_moved_leaves_no_hook_behind(
    station: Station, repository: Path
):
    hook = repository / "hooks/post-checkout"
    command = f"mv .git moved; mkdir -p .git && cp -r moved/. .git/; {plant('.git/hooks/post-checkout')}"
    station.run(command, FULL_ACCESS)
    assert os.access(hook, os.X_OK), "without walls it must work"
    station.run("rm -rf .git; mv moved .git", FULL_ACCESS)
    station.run(command)
    assert not os.access(hook, os.X_OK)


def denials(result: RunResult) -> set[str]:
    """Return the paths of what was refused or undone."""
    assert result.sandbox is not None
    return {str(denial.path) for denial in result.sandbox.denials}


def test_e13_a_hook_that_has_another_name_is_put_back(
    station: Station, repository: Path
):
    """No mount covers the other name; the check after the command knows the file."""
    hook, text = repository / "hooks/post-checkout", "#!/bin/sh\nexit 0\n"
    station.make("workspace/.git/hooks/post-checkout", text).chmod(0o755)
    os.link(hook, station.workspace / "name")
    os.lchown(station.workspace / "name", station.caller.uid, station.caller.gid)
    command = "echo id >> name"
    station.run(command, FULL_ACCESS)
    assert hook.read_text() == text + "id\n", "without walls it must work"
    # What the host changes stays, by whichever name.
    text = "#!/bin/sh\nexit 1\n"
    for _ in range(2):
        (station.workspace / "name").write_text(text)
        assert not denials(station.run("true"))
        assert hook.read_text() == text
        text = "#!/bin/sh\nexit 2\n"
        hook.write_text(text)

    assert str(hook) in denials(station.run(command))
    assert hook.read_text() == text
    assert os.access(hook, os.X_OK)
    # It has one name now, and a mount keeps it.
    assert hook.stat().st_nlink == 1
    assert not denials(station.run("echo id >> name"))


def test_what_outlives_its_command_plants_nothing_either(station: Station):
    """The shell is gone when it happens; the next command's check finds it."""
    done = station.workspace / "done"
    hook = "n/.git/hooks/post-checkout"
    later = f"sleep 0.3; {GIT} init -q n; {plant(hook)}; touch done"
    result = station.run(f"(exec >/dev/null 2>&1; {later}) & echo started")
    assert result.stdout.text == "started\n"
    deadline = time.monotonic() + 20
    while not done.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.1)
    result = station.run("true")
    assert not os.access(station.workspace / hook, os.X_OK)
    assert result.sandbox is not None
    assert result.sandbox.denied


class TestDailyWork:
    """Commit, branch, stash, fetch, worktree, rebase and submodules keep working."""

    def test_everything_in_a_repository_of_the_hosts(
        self, station: Station, repository: Path
    ):
        script = f"""
            set -e
            echo one > a; {GIT} add a; {GIT} commit -q -m one
            {GIT} checkout -q -b topic; echo two > b; {GIT} add b; {GIT} commit -q -m two
            {GIT} checkout -q main; echo three > a; {GIT} commit -q -am three
            {GIT} checkout -q topic; {GIT} rebase -q main
            echo four >> b; {GIT} stash -q; {GIT} stash pop -q; {GIT} commit -q -am four
            {GIT} checkout -q main; {GIT} merge -q --no-edit topic
            {GIT} tag v1; {GIT} gc -q; {GIT} log --oneline | wc -l
            {GIT} worktree add -q tree topic; {GIT} -C tree log --oneline | wc -l
            {GIT} -C tree commit -q --allow-empty -m five; {GIT} worktree remove tree
            {GIT} reflog | head -1 > /dev/null; {GIT} bisect start -q HEAD HEAD~1 > /dev/null
            {GIT} bisect reset 2> /dev/null; {GIT} cherry-pick --allow-empty topic > /dev/null
        """
        result = station.run(script)
        assert result.exit_code == 0, result.stderr.text
        assert result.stdout.text.split() == ["5", "5"]
        assert result.sandbox is not None
        assert not result.sandbox.denied, result.sandbox

    def test_fetch_and_push_to_a_remote_that_is_there(
        self, station: Station, repository: Path
    ):
        bare = station.workspace / "remote.git"
        git(station, "init", "-q", "--bare", str(bare))
        git(station, "remote", "add", "origin", str(bare))
        script = f"""
            set -e
            {GIT} push -q origin HEAD:refs/heads/main
            {GIT} fetch -q origin; {GIT} log --oneline origin/main | wc -l
        """
        assert station.text(script) == "1\n"

    def test_a_worktree_as_the_workspace_commits_into_its_repository(
        self, station: Station, repository: Path
    ):
        git(station, "worktree", "add", "-q", str(station.outside / "tree"))
        session = station.open(station.outside / "tree")
        committed = session.run(
            f"{GIT} commit -q --allow-empty -m two && {GIT} log --oneline | wc -l",
            mode="workspace-write",
        )
        assert committed.stdout.text == "2\n", committed
        # The repository's own metadata is protected all the same.
        hook = repository / "hooks/post-commit"
        session.run(plant(str(hook)), mode="workspace-write")
        assert not os.access(hook, os.X_OK)
        session.run("git config core.pager id", mode="workspace-write")
        assert "pager" not in (repository / "config").read_text()

    def test_a_worktree_that_lies_is_refused_and_the_path_is_named(
        self, station: Station, repository: Path
    ):
        """The .git file is in the workspace, so its word counts nothing."""
        git(station, "worktree", "add", "-q", str(station.outside / "tree"))
        liar = station.give(station.outside / "liar")
        station.make("outside/liar/.git", (station.outside / "tree/.git").read_text())
        session = station.open(liar)
        result = session.run(
            f"{GIT} commit -q --allow-empty -m x", mode="workspace-write"
        )
        assert result.exit_code != 0
        assert result.sandbox is not None
        assert result.sandbox.denied
        assert str(repository) in str(result.sandbox.denials[0].path)

    def test_submodules_work_and_are_protected(
        self, station: Station, repository: Path
    ):
        inner = station.give(station.outside / "inner")
        git(station, "init", "-q", cwd=inner)
        git(station, "commit", "-q", "--allow-empty", "-m", "x", cwd=inner)
        git(station, "submodule", "add", "-q", str(inner), "lib")
        git(station, "commit", "-q", "-m", "with lib")
        script = f"""
            set -e
            {GIT} -C lib commit -q --allow-empty -m y; {GIT} add lib
            {GIT} commit -q -m bump; {GIT} submodule status | wc -l
        """
        assert station.text(script) == "1\n"
        hook = repository / "modules/lib/hooks/pre-commit"
        station.run(plant(str(hook)))
        assert not os.access(hook, os.X_OK)

    def test_a_redirected_hook_folder_is_protected(
        self, station: Station, repository: Path
    ):
        station.make("workspace/.githooks/pre-commit", "#!/bin/sh\n").chmod(0o755)
        git(station, "config", "core.hooksPath", ".githooks")
        station.run("echo 'echo evil' >> .githooks/pre-commit")
        hook = station.workspace / ".githooks/pre-commit"
        assert hook.read_text() == "#!/bin/sh\n"
        assert os.access(hook, os.X_OK)


class TestWhereTheFoldersAreUnusual:
    def test_i03_a_git_folder_that_is_a_link(self, station: Station):
        station.give(station.outside / "meta")
        git(
            station,
            *("init", "-q", f"--separate-git-dir={station.outside}/meta/x.git", "."),
        )
        (station.workspace / ".git").unlink()
        station.link(station.workspace / ".git", "../outside/meta/x.git")
        assert station.text("pwd; git status --porcelain").startswith(
            str(station.workspace)
        )
        hook = station.outside / "meta/x.git/hooks/pre-commit"
        station.run(plant(str(hook)))
        assert not hook.exists() or not os.access(hook, os.X_OK)

    def test_i03_a_git_folder_behind_a_link_inside_is_protected(self, station: Station):
        git(
            station,
            "init",
            "-q",
            f"--separate-git-dir={station.workspace}/meta.git",
            ".",
        )
        (station.workspace / ".git").unlink()
        station.link(station.workspace / ".git", "meta.git")
        hook = station.workspace / "meta.git/hooks/pre-commit"
        result = station.run(f"git status --porcelain; {plant(str(hook))}")
        assert not hook.exists() or not os.access(hook, os.X_OK)
        assert result.sandbox is not None
        assert result.sandbox.denied

    def test_i09_a_protected_name_that_is_a_link_is_protected_where_it_leads(
        self, station: Station
    ):
        station.make("workspace/shared/.codex/config.toml", "mine")
        station.link(station.workspace / ".codex", "shared/.codex")
        assert station.text("pwd") == f"{station.workspace}\n"
        result = station.run("echo x > shared/.codex/hooks.toml")
        assert not (station.workspace / "shared/.codex/hooks.toml").exists()
        assert result.sandbox is not None
        assert result.sandbox.denied

    def test_i04_nothing_appears_and_nothing_goes(self, station: Station):
        before = sorted(station.workspace.rglob("*"))
        task = station.client.start("sleep 5", mode="workspace-write")
        try:
            for _ in range(5):
                station.run("true")
                assert sorted(station.workspace.rglob("*")) == before
        finally:
            station.client.kill(task.task_id)
        git(station, "init", "-q")
        assert station.text("git status --porcelain --untracked-files=all") == ""

    @on(SERVED_BWRAP, SERVED_LANDLOCK)
    def test_i08_a_workspace_whose_top_belongs_to_root(self, station: Station):
        own = station.give(station.workspace / "r")
        git(station, "init", "-q", cwd=own)
        os.chown(station.workspace, 0, 0)
        station.workspace.chmod(0o755)
        try:
            assert station.text("pwd") == f"{station.workspace}\n"
            station.run(plant("r/.git/hooks/pre-commit"))
            assert not os.access(own / ".git/hooks/pre-commit", os.X_OK)
        finally:
            os.chown(station.workspace, station.caller.uid, station.caller.gid)

    def test_a_home_as_the_workspace_keeps_its_start_up_files(self, station: Station):
        home = station.give(station.folder / "home")
        station.make("home/.bashrc", "mine\n")
        session = with_policies(
            station, home, {"HOME": str(home)}, plain='mode = "workspace-write"\n'
        )
        session.run(
            "echo evil >> .bashrc; mkdir -p .config/fish .config/systemd/user;"
            " echo evil > .config/fish/config.fish",
            mode="workspace-write",
        )
        assert (home / ".bashrc").read_text() == "mine\n"
        assert not (home / ".config/fish").exists()
        assert not (home / ".config/systemd").exists()


class TestBashdsOwnConfiguration:
    """Nothing in a workspace widens anything: not even where policies lie in it."""

    def test_policies_in_a_writable_folder_cannot_be_added(self, station: Station):
        config = station.give(station.workspace / "config")
        session = station.open(
            environ={**station.environ, "XDG_CONFIG_HOME": str(config)}
        )
        wide = 'mode = "danger-full-access"\\n'
        session.run(
            f"mkdir -p config/bashd/policies; printf '{wide}' > config/bashd/policies/w.toml",
            mode="workspace-write",
        )
        assert not (config / "bashd").exists()

    def test_policies_in_a_writable_folder_cannot_be_changed(self, station: Station):
        config = station.workspace / "config"
        own = station.make(
            "workspace/config/bashd/policies/own.toml", 'mode = "workspace-write"\n'
        )
        session = station.open(
            environ={**station.environ, "XDG_CONFIG_HOME": str(config)}
        )
        session.run(
            "echo 'namespaces = true' >> config/bashd/policies/own.toml", policy="own"
        )
        assert own.read_text() == 'mode = "workspace-write"\n'
        session.run("mv config/bashd config/gone", policy="own")
        assert own.exists()

    @on(*UNDER_BWRAP)
    def test_an_extra_root_that_commands_could_redirect_is_left_out(
        self, station: Station
    ):
        victim = station.make("outside/victim", "mine\n")
        session = with_policies(
            station,
            cache=f'mode = "workspace-write"\nwritable = ["{station.workspace}/cache"]\n',
        )
        session.run(f"ln -s {station.outside} cache", mode="workspace-write")
        session.run(f"echo evil > {victim}", policy="cache")
        assert victim.read_text() == "mine\n"

    def test_an_extra_root_is_writable_and_a_missing_one_stops_nothing(
        self, station: Station
    ):
        cache = station.give(station.outside / "cache")
        station.link(station.outside / "link", "cache")
        session = with_policies(
            station,
            cache='mode = "workspace-write"\nwritable = '
            f'["{station.outside}/link", "{station.outside}/nowhere"]\n',
        )
        done = session.run(f"echo x > {cache}/made", policy="cache")
        assert done.exit_code == 0, done
        assert (cache / "made").read_text() == "x\n"
        assert not (station.outside / "nowhere").exists()


def test_read_only_changes_nothing_of_it(station: Station, repository: Path):
    before = _state(repository)
    for command, _ in HOST_RUNS.values():
        station.run(command, READ_ONLY)
    assert _state(repository) == before
    assert [path.name for path in station.workspace.iterdir()] == [".git"]
