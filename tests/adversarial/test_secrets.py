"""What the policy masks cannot be read, whatever it is called and whenever it appears."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

import pytest

from bashd.cli.doctor_findings import State
from bashd.cli.doctor_host import judge_hard_links
from bashd.client import SyncClient
from bashd.core.errors import StartError
from tests.adversarial.attack import (
    READ_AND_PRINT,
    Attack,
    prints,
    stopped,
    with_policies,
)
from tests.support.accounts import Account, as_user
from tests.support.stations import (
    CONFINING,
    FULL_ACCESS,
    READ_ONLY,
    ROOT_BWRAP,
    ROOT_LANDLOCK,
    SERVED_BWRAP,
    UNDER_BWRAP,
    USER_BWRAP,
    Station,
    on,
)

STORES = (
    *(".ssh/id_ed25519", ".aws/credentials", ".config/gh/hosts.yml", ".netrc"),
    *(".docker/config.json", ".kube/config", ".gnupg/secring.gpg", ".npmrc"),
    *(".pypirc", ".cargo/credentials.toml", ".git-credentials", ".bash_history"),
    *(".mozilla/firefox/x/logins.json", ".local/share/keyrings/login.keyring"),
    *(".claude/.credentials.json", ".codex/auth.json", ".azure/token"),
)


@pytest.fixture
def token() -> str:
    return secrets.token_hex(12)


@pytest.fixture
def home(station: Station, token: str) -> Path:
    """A home of the caller's with a secret in every store."""
    for name in STORES:
        station.make(f"home/{name}", f"{token}\n")
    station.make("home/.profile", "plain\n")
    return station.folder / "home"


def at_home(station: Station, home: Path, **policies: str) -> SyncClient:
    """Open a session of somebody whose home that is."""
    policies.setdefault("at_home", 'mode = "workspace-write"\n')
    return with_policies(station, None, {"HOME": str(home)}, **policies)


def masks(home: Path, *names: str) -> dict[str, str]:
    listed = ", ".join(f'"{home}/{name}"' for name in names)
    return {"masking": f'mode = "workspace-write"\nmasked = [{listed}]\n'}


def test_every_store_is_closed_in_every_confined_mode(
    station: Station, home: Path, token: str
):
    """The shipped masks speak of ~, which is the passwd's: these are the same, moved."""
    stores = {name.split("/")[0] if "/" in name else name for name in STORES}
    stores -= {".config", ".local", ".cargo", ".claude", ".codex"}
    stores |= {".config/gh", ".local/share/keyrings", ".cargo/credentials*"}
    stores |= {".claude/.credentials.json", ".codex/auth.json"}
    session = at_home(station, home, **masks(home, *sorted(stores)))
    reading = f"cd {home}; for f in {' '.join(STORES)}; do cat $f; done; cat .profile"
    free = station.run(reading, FULL_ACCESS)
    assert free.stdout.text.count(token) == len(STORES)
    for mode in CONFINING:
        closed = session.run(reading, mode=mode, policy="masking")
        assert token not in closed.stdout.text, closed
        assert "plain" in closed.stdout.text


def test_the_shipped_masks_close_the_systems_and_the_homes_stores(station: Station):
    """On the real home, of which nothing but the canary is looked at."""
    if station.caller.is_root:
        attack = Attack("cat /etc/shadow", prints("root:"))
        for mode in CONFINING:
            stopped(station, attack, mode)
        return
    own = station.caller.home / ".ssh"
    own.mkdir()
    (own / "canary").write_text("the key")
    for path in (own, own / "canary"):
        os.chown(path, station.caller.uid, station.caller.gid)
    try:
        attack = Attack(f"cat {own}/canary ~/.ssh/canary", prints("the key"))
        for mode in CONFINING:
            result = stopped(station, attack, mode)
            assert result.sandbox is not None
            assert result.sandbox.denied, "a masked path is named"
    finally:
        (own / "canary").unlink()
        own.rmdir()


class TestUnderAnyName:
    def test_through_links_made_inside_and_outside(
        self, station: Station, home: Path, token: str
    ):
        station.link(station.outside / "link", str(home / ".aws"))
        session = at_home(station, home, **masks(home, ".aws", ".netrc"))
        ways = (
            f"ln -s {home}/.aws w; cat w/credentials",
            f"cat {station.outside}/link/credentials",
            f"cat /proc/self/root{home}/.aws/credentials",
            f"cd {home}; cat ./work/../.aws/credentials ../home/.aws/credentials",
            f"ln {home}/.netrc hard && cat hard",
            f"cp -r {home}/.aws copy; cat copy/credentials",
            f"tar c -C {home} .aws .netrc | tr -d '\\0'",
            f"exec 3<{home}/.netrc; cat <&3",
        )
        for way in ways:
            result = session.run(way, policy="masking")
            assert token not in result.stdout.text, way

    def test_a_mask_that_is_a_link_hides_what_it_leads_to(
        self, station: Station, home: Path, token: str
    ):
        """As stow and chezmoi have it: the store lies somewhere else."""
        (home / ".aws").rename(home / "dotfiles-aws")
        station.link(home / ".aws", "dotfiles-aws")
        session = at_home(station, home, **masks(home, ".aws"))
        for path in (".aws", "dotfiles-aws"):
            result = session.run(f"cat {home}/{path}/credentials", policy="masking")
            assert token not in result.stdout.text

    @pytest.mark.parametrize("part", ["", "deep"])
    def test_through_another_mount_of_the_same(
        self, station: Station, home: Path, token: str, part: str
    ):
        station.make("home/.aws/deep/credentials", f"{token}\n")
        elsewhere = station.give(station.outside / "mounted")
        source = home / ".aws" / part
        subprocess.run(["mount", "--bind", str(source), str(elsewhere)], check=True)
        try:
            read = f"cat {elsewhere}/credentials"
            assert token in station.run(read, FULL_ACCESS).stdout.text
            session = at_home(station, home, **masks(home, ".aws"))
            assert token not in session.run(read, policy="masking").stdout.text
        finally:
            subprocess.run(["umount", str(elsewhere)], check=True)

    def test_through_a_mount_that_is_made_later(
        self, station: Station, home: Path, token: str
    ):
        elsewhere = station.give(station.outside / "mounted")
        read = f"cat {elsewhere}/credentials"
        session = at_home(station, home, **masks(home, ".aws"))
        assert token not in session.run(read, policy="masking").stdout.text
        subprocess.run(
            ["mount", "--bind", str(home / ".aws"), str(elsewhere)], check=True
        )
        try:
            assert token not in session.run(read, policy="masking").stdout.text
        finally:
            subprocess.run(["umount", str(elsewhere)], check=True)


class TestWhileTheCellLives:
    def test_a_store_that_appears_later_is_closed(
        self, station: Station, home: Path, token: str
    ):
        names = (".aws", ".netrc", ".late", ".later-*")
        session = at_home(station, home, **masks(home, *names))
        assert session.run("true", policy="masking").exit_code == 0
        station.make("home/.late", f"{token}\n")
        station.make("home/.later-credentials", f"{token}\n")
        station.make("home/.lateness", "plain\n")
        result = session.run(f"cat {home}/.late*", policy="masking")
        assert token not in result.stdout.text
        assert "plain" in result.stdout.text

    def test_a_store_that_is_replaced_by_a_rename_stays_closed(
        self, station: Station, home: Path, token: str
    ):
        """As every tool saves its credentials."""
        session = at_home(station, home, **masks(home, ".netrc", ".aws"))
        read = f"cat {home}/.netrc {home}/.aws/credentials"
        for _ in range(3):
            assert token not in session.run(read, policy="masking").stdout.text
            station.make("home/new", f"{token}\n").rename(home / ".netrc")
            station.make("home/new", f"{token}\n").rename(home / ".aws/credentials")

    def test_a_folder_that_is_made_anew_stays_closed(
        self, station: Station, home: Path, token: str
    ):
        session = at_home(station, home, **masks(home, ".aws"))
        assert session.run("true", policy="masking").exit_code == 0
        (home / ".aws").rename(home / "old")
        station.make("home/.aws/credentials", f"{token}\n")
        result = session.run(f"cat {home}/.aws/credentials", policy="masking")
        assert token not in result.stdout.text


@on(*UNDER_BWRAP)
def test_a_workspace_with_stores_in_it_can_be_worked_in(
    station: Station, home: Path, token: str
):
    """A home is the workspace: the stores are closed and stay where they are."""
    with_mask = masks(home, ".ssh", ".config/gh", ".netrc")
    session = with_policies(station, home, {"HOME": str(home)}, **with_mask)
    result = session.run(
        "cat .ssh/id_ed25519 .config/gh/hosts.yml .netrc; mv .ssh s; mv .config c;"
        " mv .netrc n; rm -rf .ssh; cat s/* c/gh/* n; echo made > own",
        policy="masking",
    )
    assert token not in result.stdout.text + result.stderr.text
    assert (home / "own").read_text() == "made\n"
    for name in (".ssh/id_ed25519", ".config/gh/hosts.yml", ".netrc"):
        assert token in (home / name).read_text()


def test_a_workspace_inside_a_masked_folder_is_a_clear_error(
    station: Station, home: Path
):
    inside = station.give(home / ".aws/project")
    session = with_policies(station, inside, {"HOME": str(home)}, **masks(home, ".aws"))
    with pytest.raises(StartError, match="masks"):
        session.run("true", policy="masking")


def test_no_link_rename_or_mount_leads_out(station: Station):
    canary = station.make("outside/canary")
    ways = (
        f"ln -s {canary} l; echo x >> l",
        f"ln {canary} h; echo x >> h",
        f"mv {canary} .; echo x >> canary; mv canary {canary}",
        f"cp --reflink=auto {canary} c; cp c {canary}; echo x >> {canary}",
        f"mkdir m; mount --bind {station.outside} m; echo x >> m/canary",
        "cd /proc/self/cwd/../outside; echo x >> canary",
        f"rsync -a . {station.outside}/ ; echo x | tee -a {canary}",
    )
    for way in ways[:4]:
        station.run(way, FULL_ACCESS)
        assert canary.read_text() != "canary\n", f"{way}: without walls it must work"
        canary.write_text("canary\n")
        # What it made must not be what the next one finds.
        station.text("rm -f l h c", FULL_ACCESS)
    for way in ways:
        station.run(way)
        assert canary.read_text() == "canary\n", way


def test_e13_a_hard_link_that_was_there_before_leads_out_and_none_is_made(
    station: Station,
):
    """No wall tells two names apart: documented, and shown here to be just so."""
    canary = station.make("outside/canary")
    os.link(canary, station.workspace / "link")
    assert station.run("echo x > link", READ_ONLY).exit_code != 0
    assert canary.read_text() == "canary\n"
    through = station.run("echo x > link")
    assert canary.read_text() == "x\n"
    assert through.sandbox is not None
    assert not through.sandbox.denied
    made = station.run(f"ln {canary} own && echo y > own")
    assert made.exit_code != 0
    assert canary.read_text() == "x\n"


def test_e13_a_user_can_link_no_more_than_it_may_write_to(ordinary_user: Account):
    """So what a link leads to is never more than the user's own command could do."""
    setting = Path("/proc/sys/fs/protected_hardlinks").read_text().strip()
    source, link = "/etc/shadow", ordinary_user.home / "shadow"
    done = as_user(ordinary_user, ["ln", source, str(link)], cwd=Path("/"))
    try:
        assert (done.returncode == 0) == (setting == "0"), done.stderr
        assert judge_hard_links(setting).state is (
            State.LIMITED if setting == "0" else State.OK
        )
    finally:
        link.unlink(missing_ok=True)


def test_the_workdir_of_a_call_moves_no_wall(station: Station):
    canary = station.make("outside/canary")
    for workdir in ("/", str(station.folder), str(station.outside)):
        result = station.run(f"echo x > {canary}", workdir=workdir)
        assert result.exit_code != 0
        assert canary.read_text() == "canary\n"
        assert station.text("pwd", workdir=workdir).strip() == workdir


@pytest.mark.parametrize("mode", [*CONFINING, FULL_ACCESS])
def test_no_credential_is_left_anywhere_in_the_environment(station: Station, mode: str):
    token = secrets.token_hex(16)
    names = ("DEMO_API_KEY", "GITHUB_TOKEN")
    session = station.open(environ={**station.environ, **dict.fromkeys(names, token)})
    search = (
        "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; ps auxe;"
        " cat /proc/$PPID/cmdline; true"
    )
    free = station.as_caller("sh", "-c", search, env=dict.fromkeys(names, token))
    assert token in free.stdout, "unscrubbed it would be seen"
    seen = session.run(search, mode=mode)
    assert token not in seen.stdout.text
    assert set(names) <= set(seen.env_removed)
    kept = session.run("echo $DEMO_API_KEY", mode=mode, env={"DEMO_API_KEY": token})
    assert token in kept.stdout.text, "an explicit entry is never scrubbed"


def test_another_sessions_output_cannot_be_read_or_changed(station: Station):
    other = station.open()
    token = secrets.token_hex(16)
    spilled = other.run(f"for i in $(seq 9000); do echo {token}; done", mode=READ_ONLY)
    path = spilled.stdout.spill_path
    assert path is not None
    assert token in other.run(f"tail -1 {path}", mode=READ_ONLY).stdout.text, "its own"
    attack = Attack(f"{READ_AND_PRINT} {path}", prints(token))
    for mode in CONFINING:
        stopped(station, attack, mode)
    for session in (other, station.client):
        for attempt in (f"echo x >> {path}", f"rm {path}", f"mv {path} ."):
            session.run(attempt, mode="workspace-write")
    content = Path(path).read_text()
    assert content.count(token) == 9000
    info = Path(path).stat()
    assert info.st_mode & 0o777 == 0o600
    assert info.st_uid == station.caller.uid
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700


@on(USER_BWRAP, SERVED_BWRAP)
def test_other_peoples_processes_are_not_seen(station: Station):
    mark = secrets.token_hex(8)
    with subprocess.Popen(["sleep", "600"], env={"MARK": mark}) as process:
        try:
            assert str(process.pid) in station.text("ls /proc", FULL_ACCESS).split()
            seen = station.text("ps -e -o pid,args; ls /proc")
            assert "sleep 600" not in seen
            assert mark not in seen
        finally:
            process.kill()


ADDRESSES = "head -100 /proc/kallsyms | cut -d ' ' -f 1 | sort -u"


@on(ROOT_BWRAP, ROOT_LANDLOCK)
def test_root_sees_no_more_of_the_kernels_layout_than_anybody(
    station: Station, ordinary_user: Account
):
    """Root may read addresses without walls, unless the kernel hides them from all."""
    anybody = as_user(ordinary_user, ["sh", "-c", ADDRESSES], cwd=Path("/")).stdout
    free = station.text(ADDRESSES, FULL_ACCESS)
    hidden_from_all = Path("/proc/sys/kernel/kptr_restrict").read_text() == "2\n"
    assert (len(free.split()) > 1) != hidden_from_all
    for mode in CONFINING:
        assert station.text(ADDRESSES, mode) == anybody


@on(ROOT_BWRAP, ROOT_LANDLOCK)
def test_the_kernels_log_is_closed(station: Station):
    assert station.run("dmesg", FULL_ACCESS).stdout.text, "without walls it is read"
    for mode in CONFINING:
        assert not station.run("dmesg; dmesg -S", mode).stdout.text
        assert station.run("head -c 1 /dev/kmsg", mode).stdout.text == ""
