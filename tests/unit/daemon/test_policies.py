"""Which policy files have a say, for whom, and when they are read again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bashd.core.ceiling import Ceilings
from bashd.core.config import parse_config
from bashd.core.errors import ConfigError, InvalidParamsError, NotAllowedError
from bashd.core.model import Mode
from bashd.core.policy import values_of
from bashd.daemon.configuration import load_config
from bashd.daemon.policies import SHIPPED, PolicyStore, User
from bashd.daemon.policy_files import read_text, shipped_dir, take_stamp


class Site:
    """A machine's policy folders, below a folder of the test's."""

    def __init__(self, top: Path) -> None:
        self.home = top / "home"
        self.system = top / "etc"
        self.own = self.home / ".config/bashd/policies"
        self.own.mkdir(parents=True)
        self.user = User("u", ("users",), str(self.home), str(self.home / ".config"))

    def store(self, ceilings: str = "") -> PolicyStore:
        return PolicyStore(
            ceilings=parse_config(ceilings, "/c.toml").ceilings,
            system=str(self.system),
            system_owner=os.geteuid(),
        )

    def write_own(self, name: str, text: str) -> Path:
        return _write(self.own / f"{name}.toml", text)

    def write_system(self, name: str, text: str) -> Path:
        (self.system / "policies").mkdir(parents=True, exist_ok=True)
        return _write(self.system / "policies" / f"{name}.toml", text)

    def write_ceiling(self, text: str) -> None:
        self.system.mkdir(exist_ok=True)
        _write(self.system / "bashd.toml", text)


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o644)
    return path


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# -- what is shipped ---------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies_load(site: Site, name: str):
    policy = site.store().load(name, site.user)
    assert policy.name == name
    assert policy.description
    assert all(path.startswith("/") for path in policy.masked)


def test_every_shipped_file_is_known_by_name():
    files = {path.stem for path in Path(shipped_dir()).glob("*.toml")}
    assert files == set(SHIPPED)


@pytest.mark.parametrize("mode", list(Mode))
def test_the_policy_of_a_mode_has_that_mode(site: Site, mode: Mode):
    policy = site.store().load(str(mode), site.user)
    assert policy.mode is mode
    assert policy.network == "host"
    assert not policy.nested
    assert policy.scratch


def test_confined_modes_differ_in_writing_only(site: Site):
    store = site.store()
    narrow = values_of(store.load("read-only", site.user))
    wide = values_of(store.load("workspace-write", site.user))
    differing = {key for key in narrow if narrow[key] != wide[key]}
    assert differing == {"description", "mode", "protected"}


@pytest.mark.parametrize("name", ["read-only", "workspace-write", "ci"])
@pytest.mark.parametrize(
    "secret",
    [
        "~/.ssh",
        "~/.gnupg",
        "~/.aws",
        "~/.azure",
        "~/.config/gcloud",
        "~/.kube",
        "~/.docker",
        "~/.netrc",
        "~/.git-credentials",
        "~/.config/git/credentials",
        "~/.config/gh",
        "~/.npmrc",
        "~/.pypirc",
        "~/.cargo/credentials*",
        "~/.mozilla",
        "~/.config/google-chrome",
        "~/.*_history",
        "/etc/shadow*",
        "/etc/gshadow*",
    ],
)
def test_confined_policies_mask_the_usual_secrets(site: Site, name: str, secret: str):
    policy = site.store().load(name, site.user)
    assert secret.replace("~", str(site.home)) in policy.masked


@pytest.mark.parametrize(
    "metadata",
    [
        ".git/hooks",
        ".git/config",
        ".vscode",
        ".idea",
        ".claude",
        ".codex",
        ".mcp.json",
        ".envrc",
        ".config/bashd",
    ],
)
def test_workspaces_protect_what_runs_elsewhere(site: Site, metadata: str):
    for name in ("workspace-write", "ci"):
        assert metadata in site.store().load(name, site.user).protected


def test_full_access_limits_nothing(site: Site):
    policy = site.store().load("danger-full-access", site.user)
    assert policy.masked == ()
    assert policy.protected == ()
    assert policy.limits.pids is None
    assert policy.limits.file_size_bytes is None


def test_ci_lets_tools_call_bashd_from_inside(site: Site):
    policy = site.store().load("ci", site.user)
    assert policy.nested
    assert policy.mode is Mode.WORKSPACE_WRITE


# -- no administrator --------------------------------------------------------------------


def test_a_users_file_stands_as_written(site: Site):
    site.write_own("workspace-write", 'writable = ["~/x"]\nunmasked = ["~/.aws"]')
    policy = site.store().load("workspace-write", site.user)
    assert policy.writable == (f"{site.home}/x",)
    assert f"{site.home}/.aws" not in policy.masked
    assert f"{site.home}/.ssh" in policy.masked


def test_a_policy_starts_from_the_policy_of_its_mode(site: Site):
    site.write_own("workspace-write", 'masked = ["~/private"]')
    site.write_own("mine", 'mode = "workspace-write"\nlimits.pids = 7')
    policy = site.store().load("mine", site.user)
    assert policy.mode is Mode.WORKSPACE_WRITE
    assert f"{site.home}/private" in policy.masked
    assert f"{site.home}/.ssh" in policy.masked
    assert policy.limits.pids == 7


def test_a_policy_without_a_mode_reads_only(site: Site):
    site.write_own("mine", 'network = "none"')
    policy = site.store().load("mine", site.user)
    assert policy.mode is Mode.READ_ONLY
    assert policy.network == "none"


@pytest.mark.parametrize("layer", ["own", "system"])
def test_a_file_named_after_a_mode_is_never_wider(site: Site, layer: str):
    write = site.write_own if layer == "own" else site.write_system
    path = write("read-only", 'mode = "workspace-write"')
    with pytest.raises(ConfigError) as caught:
        site.store().load("read-only", site.user)
    assert str(path) in caught.value.message
    assert '"read-only"' in caught.value.message


def test_a_file_named_after_a_mode_may_be_narrower(site: Site):
    site.write_own("danger-full-access", 'mode = "workspace-write"')
    policy = site.store().load("danger-full-access", site.user)
    assert policy.mode is Mode.WORKSPACE_WRITE
    assert f"{site.home}/.ssh" in policy.masked


# -- an administrator --------------------------------------------------------------------


def test_the_administrators_file_replaces_the_shipped(site: Site):
    path = site.write_system("workspace-write", 'network = "none"\nnested = true')
    policy = site.store().load("workspace-write", site.user)
    assert policy.network == "none"
    assert policy.nested
    assert f"{site.home}/.ssh" in policy.masked
    assert policy.sources["network"] == (str(path),)


def test_the_administrators_file_of_a_mode_is_the_base_of_others(site: Site):
    site.write_system("workspace-write", 'masked = ["/srv/secret"]')
    assert "/srv/secret" in site.store().load("ci", site.user).masked


def test_a_users_file_may_only_narrow_where_there_is_an_administrator(site: Site):
    site.system.mkdir()
    path = site.write_own("workspace-write", 'writable = ["~/x"]')
    with pytest.raises(ConfigError) as caught:
        site.store().load("workspace-write", site.user)
    message = caught.value.message
    assert message.startswith(f"{path}: writable")
    assert "ask the administrator" in message


def test_a_users_narrowing_holds(site: Site):
    site.write_system("ci", 'mode = "workspace-write"\nlimits.pids = 100')
    site.write_own("ci", 'network = "none"\nlimits.pids = 10')
    policy = site.store().load("ci", site.user)
    assert policy.network == "none"
    assert policy.limits.pids == 10


def test_narrowing_full_access_brings_walls(site: Site):
    site.system.mkdir()
    site.write_own("danger-full-access", 'mode = "read-only"\nnetwork = "none"')
    policy = site.store().load("danger-full-access", site.user)
    assert policy.mode is Mode.READ_ONLY
    assert policy.network == "none"
    assert f"{site.home}/.ssh" in policy.masked


def test_a_name_of_the_users_own_is_bound_by_the_ceiling(site: Site):
    site.write_ceiling('[ceiling]\nnetwork = "none"\nlimits.pids = 50')
    site.write_own("mine", 'mode = "workspace-write"\nlimits.pids = 20')
    policy = site.store().load("mine", site.user)
    assert policy.network == "none"
    assert policy.limits.pids == 20
    path = site.write_own("mine", 'mode = "workspace-write"\nlimits.pids = 60')
    with pytest.raises(ConfigError) as caught:
        site.store().load("mine", site.user)
    assert caught.value.message.startswith(f"{path}: limits.pids = 60")


def test_the_ceiling_bounds_modes(site: Site):
    site.write_ceiling(
        '[ceiling]\nmode = "read-only"\n[ceiling.user.v]\nmode = "workspace-write"'
    )
    store = site.store()
    with pytest.raises(NotAllowedError, match="read-only"):
        store.load("workspace-write", site.user)
    other = User("v", (), str(site.home), str(site.home / ".config"))
    assert store.load("workspace-write", other).mode is Mode.WORKSPACE_WRITE


def test_two_configurations_bound_together(site: Site):
    site.write_ceiling("[ceiling]\nlimits.pids = 50\nlimits.cpu_s = 5")
    store = site.store("[ceiling]\nlimits.pids = 10")
    policy = store.load("ci", site.user)
    assert policy.limits.pids == 10
    assert policy.limits.cpu_s == 5
    assert store.ceiling(site.user).values == {"limits.pids": 10, "limits.cpu_s": 5}


@pytest.mark.parametrize("place", ["", "policies", "policies/ci.toml"])
def test_what_others_may_write_bounds_nobody(site: Site, place: str):
    site.write_system("ci", 'mode = "workspace-write"')
    (site.system / place).chmod(0o777)
    with pytest.raises(ConfigError, match="writable by root alone"):
        site.store().load("ci", site.user)


# -- modes and policies ------------------------------------------------------------------


def test_a_policy_under_another_mode(site: Site):
    site.write_own("mine", 'mode = "workspace-write"\nnetwork = "none"')
    policy = site.store().load("mine", site.user, mode=Mode.READ_ONLY)
    assert policy.name == "mine"
    assert policy.mode is Mode.READ_ONLY
    assert policy.network == "none"


def test_a_mode_given_with_a_policy_meets_the_ceiling(site: Site):
    site.write_ceiling('[ceiling]\nmode = "workspace-write"')
    with pytest.raises(NotAllowedError):
        site.store().load("ci", site.user, mode=Mode.DANGER_FULL_ACCESS)


# -- what goes wrong ---------------------------------------------------------------------


def test_an_unknown_name_says_where_it_was_looked_for(site: Site):
    with pytest.raises(InvalidParamsError) as caught:
        site.store().load("workspace-wirte", site.user)
    message = caught.value.message
    assert 'did you mean "workspace-write"?' in message
    assert str(site.own) in message


@pytest.mark.parametrize("name", ["../ci", "/etc/passwd", "", "a/b", "."])
def test_a_name_never_leads_out_of_its_folder(site: Site, name: str):
    with pytest.raises(InvalidParamsError, match="policy's name"):
        site.store().load(name, site.user)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff", "not UTF-8 at byte 0"),
        (b"x" * (1 << 20) + b"x", "larger than"),
        (b"mode = ", "not valid TOML"),
        (b"mod = 1", '"mode"'),
    ],
)
def test_a_bad_file_is_named(site: Site, content: bytes, words: str):
    path = site.own / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        site.store().load("mine", site.user)
    assert str(path) in caught.value.message
    assert words in caught.value.message


def test_a_fifo_or_folder_in_place_of_a_file_does_not_hang(site: Site):
    os.mkfifo(site.own / "mine.toml")
    with pytest.raises(ConfigError, match="not a regular file"):
        site.store().load("mine", site.user)
    (site.own / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match=r"folder.toml"):
        site.store().load("folder", site.user)


def test_an_unreadable_file_is_named(site: Site):
    # A loop of links: root, too, cannot read it.
    path = site.own / "mine.toml"
    path.symlink_to(path)
    with pytest.raises(ConfigError, match=r"mine.toml: cannot be read: .*symbolic"):
        site.store().load("mine", site.user)


def test_an_error_from_the_peers_reader_reaches_the_caller(site: Site):
    def read(path: str) -> str | None:
        raise ConfigError(f"{path}: cannot be read: Permission denied")

    with pytest.raises(ConfigError, match="Permission denied"):
        site.store().load("ci", site.user, read=read)


def test_an_incomplete_installation_is_said(site: Site, tmp_path: Path):
    store = PolicyStore(shipped=str(tmp_path / "none"), system=str(site.system))
    for name in ("mine", "read-only"):
        site.write_own(name, "")
        with pytest.raises(ConfigError, match="install it again"):
            store.load(name, site.user)


# -- keeping what was loaded -------------------------------------------------------------


def age(path: Path) -> None:
    """Wait until the file is older than the clock's tick, so that it may be kept."""
    while time.time_ns() - path.stat().st_ctime_ns < 60_000_000:
        time.sleep(0.005)


def test_an_unchanged_policy_is_the_same_object(site: Site):
    age(site.write_own("mine", 'network = "none"'))
    store = site.store()
    first = store.load("mine", site.user)
    assert store.load("mine", site.user) is first
    assert store.load("mine", site.user, mode=Mode.WORKSPACE_WRITE) is not first


def test_a_rewritten_file_of_the_same_length_counts_at_once(site: Site):
    path = site.write_own("mine", 'network = "host"')
    store = site.store()
    assert store.load("mine", site.user).network == "host"
    path.write_text('network = "none"')
    assert store.load("mine", site.user).network == "none"


def test_files_that_appear_and_vanish_count_at_once(site: Site):
    age(site.own)
    store = site.store()
    before = store.load("ci", site.user)
    assert store.load("ci", site.user) is before
    path = site.write_own("ci", 'mode = "workspace-write"\nnetwork = "none"')
    assert store.load("ci", site.user).network == "none"
    path.unlink()
    assert store.load("ci", site.user).network == "host"


def test_an_administrator_who_appears_counts_at_once(site: Site):
    age(site.write_own("workspace-write", 'writable = ["/x"]'))
    store = site.store()
    assert store.load("workspace-write", site.user).writable == ("/x",)
    site.system.mkdir()
    with pytest.raises(ConfigError, match="wider"):
        store.load("workspace-write", site.user)


def test_users_do_not_share_what_was_loaded(site: Site):
    age(site.write_own("mine", 'network = "none"'))
    store = site.store()
    store.load("mine", site.user)
    stranger = User("w", (), "/nonexistent", "/nonexistent/.config")
    with pytest.raises(InvalidParamsError):
        store.load("mine", stranger)


def test_a_failure_is_not_kept(site: Site):
    path = site.write_own("mine", "bad")
    store = site.store()
    with pytest.raises(ConfigError):
        store.load("mine", site.user)
    path.write_text("")
    assert store.load("mine", site.user).mode is Mode.READ_ONLY


def test_the_peers_files_are_read_by_the_peers_reader_alone(site: Site):
    site.write_own("mine", 'network = "none"')
    seen: list[str] = []

    def read(path: str) -> str | None:
        seen.append(path)
        return read_text(path)

    def stamp(path: str):
        seen.append(path)
        return take_stamp(path)

    site.store().load("mine", site.user, read=read, stamp=stamp)
    assert set(seen) == {str(site.own / "mine.toml"), str(site.own / "read-only.toml")}
    seen.clear()
    store = site.store()
    store.load("mine", site.user, read=read, stamp=None)
    store.load("mine", site.user, read=read, stamp=None)
    assert len(seen) == 4


# -- bashd.toml --------------------------------------------------------------------------


def test_without_a_configuration_the_defaults_hold(tmp_path: Path):
    config = load_config(None, root=False, config_home=str(tmp_path))
    assert config.sandbox.mode is Mode.READ_ONLY
    assert config.ceilings == Ceilings()


def test_a_users_configuration_is_found(tmp_path: Path):
    (tmp_path / "bashd").mkdir()
    (tmp_path / "bashd/bashd.toml").write_text("[executor]\ntimeout_ms = 5")
    config = load_config(None, root=False, config_home=str(tmp_path))
    assert config.executor.timeout_ms == 5
    assert config.source == str(tmp_path / "bashd/bashd.toml")


def test_a_named_configuration_must_exist(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file; check --config"):
        load_config(str(tmp_path / "x"), root=False, config_home=str(tmp_path))
