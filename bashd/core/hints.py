"""What the reader of a failed command's output should know of the sandbox. Pure.

A resolver that fails because the network is off reads like an outage, a login that
fails because a credential was taken out reads like a revoked one, and a socket that is
walled off reads like a service that is down. One line each says so. They are hints:
stderr suggested them, so they never change a verdict.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bashd.core.scrub import is_scrubbed

if TYPE_CHECKING:
    from collections.abc import Sequence

NETWORK_BLOCKED: Final = "network blocked by sandbox"
"""Beginning of the hint about the network; for programs that look for it."""

_TAIL_CHARS: Final = 8192
"""Of a stderr looked at: what explains a failure is said near its end."""


@dataclass(frozen=True, slots=True)
class _Words:
    """What to look for in lower-cased text; the regular expression decides."""

    signs: tuple[str, ...]
    """One of these is part of every match: looking for them takes no time."""
    pattern: re.Pattern[str]

    def are_in(self, text: str) -> bool:
        """Whether *text* holds a match."""
        if not any(sign in text for sign in self.signs):
            return False
        return self.pattern.search(text) is not None


_NO_NETWORK: Final = _Words(
    (
        *("resolv", "resolution", "name or service", "no address assoc", "nodename"),
        *("unknown host", "eai_again", "enotfound", "getaddrinfo", "lookup", "look up"),
        *("dns error", "unreachable", "network is down", "no route", "urlopen"),
        *("socket: op", "misbehaving", "connect to server"),
    ),
    re.compile(
        r"(?:could not|cannot|couldn't|unable to|failed to) (?:resolve|look ?up)\b"
        r"|temporary failure in name resolution|name or service not known"
        r"|no address associated with hostname|nodename nor servname provided"
        r"|unknown host\b|\beai_again\b|\benotfound\b|getaddrinfo failed|dns error"
        r"|network is (?:unreachable|down)|\benetunreach\b|no route to host"
        r"|lookup \S+ on \S+: |lookup \S+: no such host|server misbehaving"
        r"|urlopen error \[errno 1\]|socket: operation not permitted"
        # curl says no more of an address without a name; the own loopback is there.
        r"|failed to connect to (?!localhost|127\.|::1|\[::1)\S+ port \d+ .*"
        r"(?:couldn't|could not) connect to server"
    ),
)
_NO_LOGIN: Final = _Words(
    (
        *("authenticat", "authoriz", "authoris", "credential", "username", "password"),
        *("prompts disabled", "publickey", "401", "403", "eneedauth", "logged in"),
        *("log in", "login", "access denied", "key", "token", "secret"),
    ),
    re.compile(
        r"(?:authentication|authorization) (?:failed|required|error)"
        r"|\bunauthori[sz]ed\b|(?:bad|invalid|no) credentials"
        r"|unable to locate credentials|could not (?:find|load) .{0,40}credentials"
        r"|could not read (?:username|password)|terminal prompts disabled"
        r"|permission denied \((?:publickey|password)|\b(?:http|error|status)\W{1,9}40[13]\b"
        r"|\b40[13] (?:unauthorized|forbidden)\b|\be40[13]\b|\beneedauth\b"
        r"|not logged in|login required|must (?:be )?(?:logged|log) in|need to log in"
        r"|access denied"
        r"|(?:api[ _-]?key|access token|token|password) (?:is )?(?:missing|required"
        r"|not (?:set|found|provided)|invalid|incorrect)"
        r"|(?:missing|no|invalid|incorrect|set the|provide an?) .{0,20}"
        r"(?:api[ _-]?key|(?:access|auth)[ _-]?token)"
        r"|variable .{0,40}(?:key|token|secret|password)\w* .{0,20}"
        r"(?:not|must|unset|missing|required)"
        r"|keyerror: '\w*(?:key|token|secret|password)\w*'"
    ),
)
_MOST_NAMES: Final = 8
_WORD: Final = re.compile(r"[a-z]{2,}")
_ORDINARY: Final = frozenset(
    ("key", "keys", "token", "secret", "password", "api", "access", "auth", "id", "the")
)
"""Parts of names that say nothing about whose credential it is."""


def network_hint(stderr: str, network: str) -> str | None:
    """Return the line for a command that failed for want of a network.

    Args:
        stderr: Of a command that failed.
        network: The policy's: ``host`` or ``none``.
    """
    if network == "host" or not _NO_NETWORK.are_in(_end_of(stderr)):
        return None
    return f'{NETWORK_BLOCKED}: its policy says network = "{network}"'


def credential_hint(
    stderr: str, command: str, env_removed: Sequence[str]
) -> str | None:
    """Return the line for a command that failed to authenticate; names, never values.

    Args:
        stderr: Of a command that failed.
        command: Its text, to name first what it is likely to want.
        env_removed: Names taken out of the caller's environment.
    """
    names = [name for name in env_removed if _is_credential(name)]
    end = _end_of(stderr)
    if not names or not _NO_LOGIN.are_in(end):
        return None
    said = f"{command.lower()}\n{end}"
    names.sort(key=lambda name: (not _is_spoken_of(name, said), name))
    listed = ", ".join(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        listed += f" and {len(names) - _MOST_NAMES} more"
    return (
        f"credentials were removed from its environment: {listed}; one can be passed"
        " with --env NAME=VALUE"
    )


def socket_hint(path: str) -> str:
    """Return the line for a command that failed to reach a walled socket.

    Args:
        path: Of the socket, canonical.
    """
    return (
        f"the socket {path} is walled off by policy, whether or not its service runs;"
        " a policy's sockets.grant can open it"
    )


def _end_of(stderr: str) -> str:
    return stderr[-_TAIL_CHARS:].lower()


def _is_credential(name: str) -> bool:
    return is_scrubbed(name) and not name.casefold().startswith("bashd_")


def _is_spoken_of(name: str, said: str) -> bool:
    words = set(_WORD.findall(name.lower())) - _ORDINARY
    return name.lower() in said or any(word in said for word in words)


_PATH: Final = re.compile(r"(?:unix:(?://)?)?(/[\w.@+~/-]+)")
_UNREACHED: Final = _Words(
    (
        *("no such file", "refused", "denied", "not permitted", "connect", "running"),
        *("enoent", "eacces", "eperm", "econnrefused"),
    ),
    re.compile(
        r"no such file or directory|connection refused|permission denied"
        r"|operation not permitted|(?:can ?not|could not|failed to|unable to) connect"
        r"|is the .{0,30}running|\b(?:enoent|eacces|eperm|econnrefused)\b"
    ),
)
_MOST_PATHS: Final = 32


def possible_sockets(stderr: str, command: str) -> tuple[str, ...]:
    """Return paths that a failed command may have wanted to connect to.

    Named by its stderr, or by its own text where stderr complains of something that
    a missing socket would explain. Whether there is a socket is for the caller to see.
    """
    if not _UNREACHED.are_in(_end_of(stderr)):
        return ()
    text = f"{stderr[-_TAIL_CHARS:]}\n{command[:_TAIL_CHARS]}"
    named = [path.rstrip("./") for path in _PATH.findall(text)]
    return tuple(dict.fromkeys(path for path in named if path))[:_MOST_PATHS]
