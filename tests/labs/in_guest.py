"""What is tried inside a guest; runs there as root, by bashd's own interpreter.

Each fact is one line of JSON on the second serial line: what was asked and what came
of it. What it should have been, `tests.labs.test_guest` says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bashd.launcher import kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

BASHD: Final = "/opt/bashd/.venv/bin/bashd"
_CONFIG: Final = Path("/etc/bashd/bashd.toml")
_OWN: Final = "/run/lab.sock"
_PATIENCE_S: Final = 300
"""An emulated machine is twenty times slower than a real one."""
_SLOW: Final = "the runner said nothing for"
"""A cell that takes longer than any real machine's; what is asked is another thing."""
_TRIES: Final = 4
_PATIENT: Final = "[sandbox]\nprobe_timeout_ms = 120000\n"
_CANARY: Final = "/home/alice/precious"
WRITES: Final = f"echo in >file; cat file; echo out >{_CANARY}"
TRUNCATES: Final = f"/usr/bin/python3 -c 'import os; os.truncate(\"{_CANARY}\", 0)'"
EATS: Final = "/usr/bin/python3 -c 'print(len(b\"x\" * (400 << 20)))'"
FORKS: Final = """/usr/bin/python3 -c '
import os, time
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError as error:
    print(error)
print(made)
' """


def main() -> None:
    """Say one fact after another."""
    with Path("/dev/ttyS1").open("w", buffering=1) as line:
        line.writelines(
            json.dumps({"name": name, "found": found}) + "\n" for name, found in facts()
        )
        line.write(json.dumps({"name": "end", "found": True}) + "\n")


def facts() -> Iterator[tuple[str, object]]:
    """Yield what was asked and what came of it."""
    yield "release", os.uname().release
    yield "abi", kernel.landlock_abi()
    Path("/etc/bashd/policies").mkdir(parents=True, exist_ok=True)
    Path("/etc/bashd/policies/tight.toml").write_text(
        'mode = "workspace-write"\n[limits]\nmemory_bytes = 100000000\npids = 40\n'
    )
    for runner in ("bwrap", "landlock"):
        _CONFIG.write_text(f'{_PATIENT}runner = "{runner}"\n')
        _call("systemctl", "restart", "bashd.socket", "bashd.service")
        Path(_CANARY).write_text("precious\n")
        _call("chown", "alice:", _CANARY)
        yield f"{runner}: writes", run("alice", WRITES)
        yield f"{runner}: canary", Path(_CANARY).read_text()
        yield f"{runner}: truncates", run("alice", TRUNCATES)
        yield f"{runner}: canary after", Path(_CANARY).read_text()
        yield f"{runner}: root", run("root", "id -u")
        yield f"{runner}: doctor", doctor("root")
    _CONFIG.write_text(_PATIENT)
    _call("systemctl", "restart", "bashd.socket", "bashd.service")
    yield "service: eats", run("alice", EATS, "--policy", "tight")
    yield "service: forks", run("alice", FORKS, "--policy", "tight")
    yield "service: after", run("alice", "echo alive", "--policy", "tight")
    _call("systemctl", "stop", "bashd.socket", "bashd.service")
    group = "/sys/fs/cgroup/system.slice/bashd.service"
    yield "service: group after stop", Path(group).exists()
    yield from own_daemon()


def own_daemon() -> Iterator[tuple[str, object]]:
    """Yield what a daemon makes of limits that is alone in a cgroup of its own."""
    group = Path("/sys/fs/cgroup/lab")
    group.mkdir()
    start = f"echo $$ >{group}/cgroup.procs; exec {BASHD} serve --socket {_OWN}"
    # Without what tells a program that systemd has started it.
    clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    with subprocess.Popen(["sh", "-c", start], env=clean) as daemon:
        while not Path(_OWN).exists():
            time.sleep(0.1)
        given = ("--socket", _OWN, "--policy", "tight")
        yield "own: eats", run("root", EATS, *given)
        yield "own: forks", run("root", FORKS, *given)
        yield "own: after", run("root", "echo alive", *given)
        daemon.terminate()
        daemon.wait(_PATIENCE_S)
    left = sorted(str(path) for path in group.rglob("*") if path.is_dir())
    yield "own: groups after stop", [path for path in left if "/bashd/" in path]


def run(user: str, command: str, *options: str) -> dict[str, object]:
    """Run one command of *user*'s and return the answer."""
    if "--policy" not in options:
        options = (*options, "--mode", "workspace-write")
    if "--socket" not in options:
        options = (*options, "--socket", "/run/bashd/bashd.sock")
    home = "/root" if user == "root" else f"/home/{user}"
    Path(f"{home}/work").mkdir(exist_ok=True)
    _call("chown", f"{user}:", f"{home}/work")
    words = [BASHD, "run", "--json", *options, "--timeout", "200", "--", command]
    done = as_user(user, words, f"{home}/work")
    for _ in range(_TRIES):
        if _SLOW not in done.stdout:
            break
        # A daemon keeps what its probe came to.
        _call("systemctl", "restart", "bashd.service")
        done = as_user(user, words, f"{home}/work")
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"status": done.returncode, "said": done.stdout + done.stderr}


def doctor(user: str) -> dict[str, object]:
    """Return what the doctor says to *user*."""
    done = as_user(user, [BASHD, "doctor"], "/")
    return {"status": done.returncode, "said": done.stdout + done.stderr}


def as_user(user: str, words: list[str], cwd: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a login of *user*'s."""
    home = "/root" if user == "root" else f"/home/{user}"
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]
    return subprocess.run(
        [*become, *words],
        cwd=cwd,
        env={"HOME": home, "USER": user, "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )


def _call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        print(words, done.stdout, done.stderr, file=sys.stderr)


if __name__ == "__main__":
    main()
