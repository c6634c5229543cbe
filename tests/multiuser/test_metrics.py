"""Figures of a live daemon: who may read them, and that they are right."""

from __future__ import annotations

import http.client
import json
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.multiuser.test_isolation import home, run
from tests.support.accounts import as_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.multiuser.conftest import Crowd

pytestmark = pytest.mark.slow

READ = (
    "import socket; s = socket.socket(socket.AF_UNIX); s.connect({path!r});"
    "s.sendall(b'GET /metrics HTTP/1.1\\r\\n\\r\\n'); print(s.recv(1 << 20))"
)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket, by the standard library's client."""

    def __init__(self, path: Path) -> None:
        super().__init__("bashd", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(str(self._path))


def get(path: Path, target: str = "/metrics") -> tuple[int, str]:
    connection = UnixConnection(path)
    connection.request("GET", target)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def total(text: str, name: str) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    )


@pytest.fixture(scope="module")
def measured(make_crowd: Callable[..., Crowd], reachable_tmp: Path) -> Crowd:
    """A daemon that also writes its figures to a file."""
    file = reachable_tmp / "bashd.prom"
    return make_crowd(
        settings={"metrics": {"text_file": str(file), "text_interval_s": 1}}
    )


def endpoint(crowd: Crowd) -> Path:
    return crowd.root.socket.with_name("bashd.sock.metrics")


def test_what_commands_do_shows_in_the_figures(measured: Crowd):
    before = get(endpoint(measured))[1]
    run(measured.alice, "echo hello")
    run(measured.alice, "echo no >/etc/denied")
    measured.alice.cli("run", "--policy", "no-such-policy", "--", "true")
    status, after = get(endpoint(measured))
    assert status == 200
    for name, more in (
        ("bashd_commands_total", 2),
        ("bashd_denials_total", 1),
        ("bashd_refused_calls_total", 1),
        ("bashd_run_seconds_count", 2),
    ):
        assert total(after, name) - total(before, name) == more, name
    assert total(after, "bashd_cells") >= 1
    assert total(after, "bashd_output_bytes_total") >= len("hello\n")


def test_only_the_daemons_owner_reads_them(measured: Crowd):
    path = endpoint(measured)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    code = READ.format(path=str(path))
    done = as_user(measured.alice.caller, ["/usr/bin/python3", "-c", code])
    assert "PermissionError" in done.stderr
    inside = run(measured.alice, f'/usr/bin/python3 -c "{code}"')
    assert inside[0] != 0
    assert "bashd_commands" not in inside[1]


def test_they_name_no_user_and_no_command(measured: Crowd):
    run(measured.bob, "echo a-word-of-bobs")
    text = get(endpoint(measured))[1]
    assert measured.bob.caller.name not in text
    assert "a-word-of-bobs" not in text


def test_another_page_is_not_there(measured: Crowd):
    assert get(endpoint(measured), "/etc/passwd")[0] == 404


def test_a_client_that_says_nothing_costs_nobody_else(measured: Crowd):
    idle = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    for sock in idle:
        sock.connect(str(endpoint(measured)))
    assert get(endpoint(measured))[0] == 200
    for sock in idle:
        sock.close()


def test_the_file_has_the_same_figures(measured: Crowd, reachable_tmp: Path):
    run(measured.alice, "true")
    wanted = total(get(endpoint(measured))[1], "bashd_commands_total")
    file = reachable_tmp / "bashd.prom"
    while total(file.read_text(), "bashd_commands_total") < wanted:
        pass
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_top_shows_them_once_to_who_may_see(measured: Crowd):
    run(measured.alice, "true")
    shown = measured.root.cli("top", "--once")
    assert shown.returncode == 0, shown.stderr
    assert "commands" in shown.stdout
    assert "cells" in shown.stdout
    own = measured.alice.cli("top", "--once")
    assert own.returncode == 0, own.stderr
    assert "only your own" in own.stdout
    as_json = json.loads(measured.root.cli("top", "--json").stdout)
    assert as_json["figures"]["bashd_commands_total"] >= 1
    assert home(measured.alice).exists()
