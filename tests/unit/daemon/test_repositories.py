"""Where git keeps what it runs, asked of real repositories."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bashd.core.metadata import CONFIG_NAME, GIT_NAMES, HOOKS_NAME, Kind
from bashd.daemon import repositories

ENV = {
    "PATH": "/usr/bin:/bin",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
}


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "protocol.file.allow=always", "-C", str(folder), *arguments],
        check=True,
        env=ENV,
        capture_output=True,
        timeout=30,
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path.resolve()


def repository(folder: Path) -> Path:
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return folder


def runs(dot_git: Path) -> dict[str, Kind]:
    found = repositories.find(str(dot_git))
    assert found is not None
    return dict(repositories.paths_that_run(found, GIT_NAMES))


def test_an_ordinary_repository(place: Path):
    own = repository(place / "r") / ".git"
    assert runs(own) == {
        f"{own}/hooks": Kind.HOOKS,
        f"{own}/config": Kind.CONFIG,
        f"{own}/config.worktree": Kind.CONFIG,
    }
    only_hooks = repositories.paths_that_run(
        repositories.find(str(own)) or pytest.fail("not found"), [HOOKS_NAME]
    )
    assert [kind for _, kind in only_hooks] == [Kind.HOOKS]


def test_a_linked_worktree_leads_to_the_main_repository(place: Path):
    main = repository(place / "main")
    git(main, "worktree", "add", "-q", "../tree")
    found = runs(place / "tree/.git")
    assert f"{main}/.git/hooks" in found
    assert f"{main}/.git/worktrees/tree/config.worktree" in found


def test_submodules_are_found_at_any_depth_and_under_any_name(place: Path):
    inner = repository(place / "inner")
    middle = repository(place / "middle")
    git(middle, "submodule", "add", "-q", str(inner), "deps/inner")
    git(middle, "commit", "-qm", "y")
    outer = repository(place / "outer")
    git(outer, "submodule", "add", "-q", str(middle), "vendor/middle")
    git(outer, "submodule", "update", "-q", "--init", "--recursive")
    found = runs(outer / ".git")
    modules = outer / ".git/modules/vendor/middle"
    assert found[f"{modules}/hooks"] is Kind.HOOKS
    assert found[f"{modules}/modules/deps/inner/config"] is Kind.CONFIG


@pytest.mark.parametrize("value", [".husky/_", "./hooks", "sub/../other"])
def test_redirected_hooks_are_found_where_they_lead(place: Path, value: str):
    own = repository(place / "r")
    git(own, "config", "core.hooksPath", value)
    target = os.path.normpath(own / value)
    assert runs(own / ".git")[target] is Kind.HOOKS


def test_hooks_paths_of_the_users_own_configuration_count(place: Path):
    own = repository(place / "r")
    (place / ".gitconfig").write_text("[core]\n\thooksPath = .githooks\n")
    relative = repositories.user_hooks_paths(str(place), str(place / ".config"))
    assert ".githooks" in relative
    found = repositories.find(str(own / ".git"))
    assert found is not None
    paths = repositories.paths_that_run(found, [HOOKS_NAME], relative)
    assert (f"{own}/.githooks", Kind.HOOKS) in paths


def test_a_symbolic_link_and_a_separate_folder_are_followed(place: Path):
    tree = place / "tree"
    tree.mkdir()
    git(tree, "init", "-q", "--separate-git-dir", str(place / "meta.git"))
    assert f"{place}/meta.git/hooks" in runs(tree / ".git")
    (tree / ".git").unlink()
    (tree / ".git").symlink_to("../meta.git")
    assert f"{place}/meta.git/config" in runs(tree / ".git")


@pytest.mark.parametrize(
    "content", ["", "gitdir: /nowhere\n", "nonsense", "gitdir: \0x\n", "gitdir: ."]
)
def test_a_git_file_that_leads_nowhere_is_no_repository(place: Path, content: str):
    (place / ".git").write_text(content)
    found = repositories.find(str(place / ".git"))
    assert found is None or found.git_dir == str(place)


def test_a_bare_repository_is_its_own_folder(place: Path):
    git(place, "init", "-q", "--bare", "b.git")
    found = repositories.find_at(str(place / "b.git"))
    assert found is not None
    assert (f"{place}/b.git/config", Kind.CONFIG) in repositories.paths_that_run(
        found, [CONFIG_NAME]
    )


class TestWhatALinkedWorkspaceMayWriteTo:
    """The main repository of a worktree, and only that, if both are the caller's."""

    def granted(self, workspace: Path, uid: int | None = None) -> str | None:
        uid = os.getuid() if uid is None else uid
        return repositories.granted_with(str(workspace), uid)[0]

    def test_a_worktree_may_write_to_the_repository_that_names_it(self, place: Path):
        main = repository(place / "main")
        git(main, "worktree", "add", "-q", "../tree")
        assert self.granted(place / "tree") == f"{main}/.git"

    def test_an_ordinary_repository_needs_nothing(self, place: Path):
        assert repositories.granted_with(str(repository(place / "r")), os.getuid()) == (
            None,
            "",
        )

    def test_a_worktrees_word_alone_counts_nothing(self, place: Path):
        main = repository(place / "main")
        git(main, "worktree", "add", "-q", "../tree")
        liar = place / "liar"
        liar.mkdir()
        (liar / ".git").write_text((place / "tree/.git").read_text())
        folder, why = repositories.granted_with(str(liar), os.getuid())
        assert folder is None
        assert f"{main}/.git/worktrees/tree" in why

    def test_a_folder_made_up_to_look_like_a_repository_grants_nothing(
        self, place: Path
    ):
        """The fabricated folder names the workspace, its common folder is a victim."""
        victim, workspace = place / "victim", place / "w"
        fake = workspace / "fake"
        for folder in (victim, fake):
            folder.mkdir(parents=True)
        (fake / "gitdir").write_text(f"{workspace}/.git\n")
        (fake / "commondir").write_text(f"{victim}\n")
        (workspace / ".git").write_text("gitdir: fake\n")
        assert self.granted(workspace) is None

    def test_a_link_to_any_folder_grants_nothing(self, place: Path):
        victim = repository(place / "victim")
        workspace = place / "w"
        workspace.mkdir()
        (workspace / ".git").symlink_to(victim / ".git")
        assert self.granted(workspace) is None

    def test_somebody_elses_repository_is_refused(self, place: Path):
        main = repository(place / "main")
        git(main, "worktree", "add", "-q", "../tree")
        folder, why = repositories.granted_with(str(place / "tree"), os.getuid() + 1)
        assert folder is None
        assert "somebody else" in why

    def test_a_submodule_may_write_to_its_own_folder(self, place: Path):
        inner = repository(place / "inner")
        outer = repository(place / "outer")
        git(outer, "submodule", "add", "-q", str(inner), "lib")
        assert self.granted(outer / "lib") == f"{outer}/.git/modules/lib"
