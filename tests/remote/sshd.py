"""A real sshd on loopback with keys of its own, and an ssh that knows it.

The server runs as the ordinary user of the tests, who is the only one it lets in, and
whose commands get a PATH with a `bashd` and a BASHD_SOCKET that leads to the daemon
under test. The client's configuration comes by ``ssh -F``, through a first `ssh` on
PATH: nobody's ~/.ssh is read or written.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.accounts import Account, argv_as

if TYPE_CHECKING:
    from tests.support.daemons import RunningDaemon

_SSHD_PLACES = "/usr/sbin:/usr/local/sbin:/sbin"


@dataclass(slots=True)
class SshServer:
    """A running sshd."""

    folder: Path
    account: Account
    port: int
    process: subprocess.Popen[bytes]
    daemon: RunningDaemon

    @property
    def url(self) -> str:
        """What to give to ``--host``."""
        return f"ssh://{self.account.name}@127.0.0.1:{self.port}"

    def env(self, **more: str) -> dict[str, str]:
        """Return the near side's environment: it has no daemon of its own."""
        near = {"PATH": f"{self.folder}/near:/usr/bin:/bin"}
        return self.account.environment() | near | more

    def near_argv(self, *words: str) -> list[str]:
        """Return the argv of ``bashd WORDS…`` on the near side."""
        program, *rest = self.daemon.caller_argv(*words)
        return [shutil.which(program) or program, *rest]

    def cli(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run ``bashd WORDS…`` on the near side."""
        return subprocess.run(
            self.near_argv(*words),
            env=self.env(**env),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    def write_near_config(self, *lines: str) -> None:
        """Write the configuration of the near side's ssh; *lines* win."""
        config = [
            *lines,
            f"IdentityFile {self.folder}/user_key",
            "IdentitiesOnly yes",
            "IdentityAgent none",
            f"UserKnownHostsFile {self.folder}/known_hosts",
            "GlobalKnownHostsFile /dev/null",
            "StrictHostKeyChecking yes",
            "BatchMode yes",
        ]
        _write(self.folder / "ssh_config", "\n".join(config) + "\n", self.account)

    def far_processes(self, name: bytes) -> list[int]:
        """Return the pids of the account whose command line holds *name*."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                words = (entry / "cmdline").read_bytes()
                uid = entry.stat().st_uid
            except OSError:
                continue
            if name in words and uid == self.account.uid:
                found.append(int(entry.name))
        return found

    def stop(self) -> None:
        """End the server and what serves a connection."""
        self.process.terminate()
        with self.process:
            self.process.wait()


def find_sshd() -> str | None:
    """Return the path of sshd, which is seldom on a PATH."""
    return shutil.which("sshd", path=_SSHD_PLACES)


def start_sshd(folder: Path, daemon: RunningDaemon) -> SshServer:
    """Start an sshd in *folder*, for the daemon's caller.

    Args:
        folder: New; reachable for the caller.
        daemon: Whose socket its commands find.
    """
    account = daemon.caller
    folder.mkdir()
    folder.chmod(0o755)
    os.chown(folder, account.uid, account.gid)
    for name in ("host_key", "user_key"):
        _run(
            account, ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name], folder
        )
    for side in ("near", "far"):
        (folder / side).mkdir()
    python = daemon.install.python
    _script(folder / "far" / "bashd", f'exec {python} -P -m bashd "$@"')
    ssh = shutil.which("ssh")
    _script(folder / "near" / "ssh", f'exec {ssh} -F {folder}/ssh_config "$@"')
    port = _free_port()
    far_env = (
        f"PATH={folder}/far:/usr/bin:/bin BASHD_SOCKET={daemon.socket} FAR_SIDE=yes"
    )
    config = [
        f"ListenAddress 127.0.0.1:{port}",
        f"HostKey {folder}/host_key",
        f"AuthorizedKeysFile {folder}/user_key.pub",
        "PidFile none",
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "MaxStartups 100",
        f"SetEnv {far_env}",
    ]
    _write(folder / "sshd_config", "\n".join(config) + "\n", account)
    host_key = (folder / "host_key.pub").read_text().rsplit(" ", 1)[0]
    known = f"[127.0.0.1]:{port} {host_key}\n"
    _write(folder / "known_hosts", known, account)
    sshd = find_sshd()
    assert sshd is not None
    process = subprocess.Popen(
        argv_as(account, [sshd, "-D", "-e", "-f", str(folder / "sshd_config")]),
        env=account.environment(),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    server = SshServer(folder, account, port, process, daemon)
    server.write_near_config()
    _wait_until_listening(process)
    return server


def _wait_until_listening(process: subprocess.Popen[bytes]) -> None:
    assert process.stderr is not None
    deadline = time.monotonic() + 20
    said = b""
    while b"Server listening" not in said:
        left = max(0.0, deadline - time.monotonic())
        ready = select.select([process.stderr], [], [], left)[0]
        data = os.read(process.stderr.fileno(), 4096) if ready else b""
        if not data:
            process.kill()
            msg = f"sshd does not listen: {said.decode(errors='replace')}"
            raise RuntimeError(msg)
        said += data


def _run(account: Account, argv: list[str], cwd: Path) -> None:
    subprocess.run(
        argv_as(account, argv),
        env=account.environment(),
        cwd=cwd,
        check=True,
        capture_output=True,
        timeout=30,
    )


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def _write(path: Path, text: str, account: Account) -> None:
    path.write_text(text)
    os.chown(path, account.uid, account.gid)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
