"""Lines that explain a failure by the sandbox: where they appear, and where not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.core.hints import (
    NETWORK_BLOCKED,
    credential_hint,
    network_hint,
    possible_sockets,
)


@pytest.mark.parametrize(
    "stderr",
    [
        "fatal: unable to access 'https://e.org/x.git/': Could not resolve host: e.org",
        "ssh: Could not resolve hostname github.com: Temporary failure in name resolution",
        "curl: (6) Could not resolve host: example.org",
        "urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>",
        "urllib.error.URLError: <urlopen error [Errno 101] Network is unreachable>",
        "npm error code EAI_AGAIN",
        "Error: getaddrinfo ENOTFOUND registry.example.org",
        "dial tcp: lookup proxy.example.org on 127.0.0.53:53: server misbehaving",
        "error: failed to lookup address information: Try again",
        "bash: connect: Network is unreachable",
        "curl: (7) Failed to connect to 192.0.2.1 port 80 after 0 ms: Couldn't connect to"
        " server",
    ],
)
def test_a_failed_resolver_is_explained_only_where_the_network_is_off(stderr):
    assert (network_hint(stderr, "none") or "").startswith(NETWORK_BLOCKED)
    assert network_hint(stderr, "host") is None


def test_an_ordinary_failure_says_nothing_of_the_network():
    stderr = "error: test_login failed\nconnect to 127.0.0.1: Connection refused"
    assert network_hint(stderr, "none") is None
    for own in ("127.0.0.1", "localhost", "::1"):
        stderr = (
            f"Failed to connect to {own} port 80 after 0 ms: Couldn't connect to server"
        )
        assert network_hint(stderr, "none") is None


@pytest.mark.parametrize(
    "stderr",
    [
        "fatal: could not read Username for 'https://e.org': terminal prompts disabled",
        "remote: HTTP Basic: Access denied\nfatal: Authentication failed for 'https://e'",
        "npm error code E401",
        "npm error code ENEEDAUTH",
        "Unable to locate credentials. You can configure credentials",
        "HTTP 401: Bad credentials (https://api.e.org/graphql)",
        "curl: (22) The requested URL returned error: 403",
        "git@e.org: Permission denied (publickey).",
        "KeyError: 'GITHUB_TOKEN'",
        "Error: environment variable OPENAI_API_KEY is not set",
        "anthropic: missing API key",
    ],
)
def test_a_failed_login_names_what_was_removed(stderr):
    hint = credential_hint(stderr, "deploy", ("GITHUB_TOKEN", "BASHD_HOME"))
    assert hint is not None
    assert "GITHUB_TOKEN" in hint
    assert "BASHD_HOME" not in hint
    assert credential_hint(stderr, "deploy", ()) is None


def test_an_ordinary_failure_names_no_credentials():
    stderr = "make: *** [all] Error 2\nkey not found in map\n2 tests failed, 401 passed"
    assert credential_hint(stderr, "make", ("GITHUB_TOKEN",)) is None


def test_the_likely_credential_comes_first_and_the_list_is_bounded():
    removed = (*(f"A{n}_TOKEN" for n in range(20)), "NPM_TOKEN")
    hint = credential_hint("npm error code E401", "npm publish", removed)
    assert hint is not None
    assert "environment: NPM_TOKEN, " in hint
    assert " and 13 more" in hint


@given(st.text(max_size=300), st.text(max_size=50), st.lists(st.text(max_size=12)))
def test_any_text_can_be_looked_at(stderr, command, names):
    network_hint(stderr, "none")
    credential_hint(stderr, command, tuple(names))
    assert len(possible_sockets(stderr, command)) <= 32


def test_sockets_are_looked_for_in_stderr_and_in_the_command():
    docker = (
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
        " Is the docker daemon running?"
    )
    assert possible_sockets(docker, "docker ps") == ("/var/run/docker.sock",)
    python = "FileNotFoundError: [Errno 2] No such file or directory"
    command = "python3 -c \"s.connect('/run/x.sock')\""
    assert possible_sockets(python, command) == ("/run/x.sock",)
    assert possible_sockets("assertion failed", command) == ()
