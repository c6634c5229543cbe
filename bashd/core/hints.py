"""What the reader of a failed command's output should know of the sandbox. Pure.

A resolver that fails because the network is off reads like an outage, a login that
fails because a credential was taken out reads like a revoked one, and a socket that is
walled off reads like a service that is down. One line each says so. They are hints:
stderr suggested them, so they never change a verdict.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from bashd.core.scrub import is_scrubbed

if TYPE_CHECKING:
    from collections.abc import Sequence

NETWORK_BLOCKED: Final = "network blocked by sandbox"
"""Beginning of the hint about the network; for programs that look for it."""

_NO_NETWORK: Final = re.compile(
    r"could not resolve (?:host|proxy)|temporary failure in name resolution"
    r"|name or service not known|no address associated with hostname"
    r"|nodename nor servname provided|unknown host\b|\bEAI_AGAIN\b|\bENOTFOUND\b"
    r"|getaddrinfo failed|failed to (?:resolve|lookup address)|dns error"
    r"|network is (?:unreachable|down)|\bENETUNREACH\b|no route to host"
    r"|unable to (?:resolve|look up)|lookup \S+ on \S+: |lookup \S+: no such host"
    r"|urlopen error \[errno 1\]|socket: operation not permitted"
    r"|server misbehaving|cannot resolve|couldn't resolve",
    re.IGNORECASE,
)
_NO_LOGIN: Final = re.compile(
    r"authentication (?:failed|required|error)|authorization (?:failed|required)"
    r"|\bunauthori[sz]ed\b|bad credentials|invalid credentials|no credentials"
    r"|unable to locate credentials|could not (?:find|load) .{0,40}credentials"
    r"|could not read (?:username|password)|terminal prompts disabled"
    r"|permission denied \((?:publickey|password)"
    r"|\b(?:http|error|status)\W{1,9}40[13]\b|\b40[13] (?:unauthorized|forbidden)\b"
    r"|returned error: 40[13]|\bE40[13]\b|\bENEEDAUTH\b|not logged in|login required"
    r"|must (?:be )?(?:logged|log) in|need to log in|access denied"
    r"|(?:api[ _-]?key|access token|token|password) (?:is )?(?:missing|required|not set"
    r"|not found|not provided|invalid|incorrect)"
    r"|(?:missing|no|invalid|incorrect|set the|provide an?) .{0,20}"
    r"(?:api[ _-]?key|access[ _-]token|auth[ _-]?token)"
    r"|(?:environment )?variable .{0,40}(?:KEY|TOKEN|SECRET|PASSWORD)\w* .{0,20}"
    r"(?:not|must|unset|missing|required)"
    r"|KeyError: '\w*(?:KEY|TOKEN|SECRET|PASSWORD)\w*'",
    re.IGNORECASE,
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
    if network == "host" or _NO_NETWORK.search(stderr) is None:
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
    if not names or _NO_LOGIN.search(stderr) is None:
        return None
    said = f"{command}\n{stderr}".lower()
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


def _is_credential(name: str) -> bool:
    return is_scrubbed(name) and not name.casefold().startswith("bashd_")


def _is_spoken_of(name: str, said: str) -> bool:
    words = set(_WORD.findall(name.lower())) - _ORDINARY
    return name.lower() in said or any(word in said for word in words)


_PATH: Final = re.compile(r"(?:unix:(?://)?)?(/[\w.@+~/-]+)")
_UNREACHED: Final = re.compile(
    r"no such file or directory|connection refused|permission denied"
    r"|operation not permitted|(?:can ?not|could not|failed to|unable to) connect"
    r"|is the .{0,30}running|ENOENT|EACCES|EPERM|ECONNREFUSED",
    re.IGNORECASE,
)
_MOST_PATHS: Final = 32


def possible_sockets(stderr: str, command: str) -> tuple[str, ...]:
    """Return paths that a failed command may have wanted to connect to.

    Named by its stderr, or by its own text where stderr complains of something that
    a missing socket would explain. Whether there is a socket is for the caller to see.
    """
    if _UNREACHED.search(stderr) is None:
        return ()
    named = [path.rstrip("./") for path in _PATH.findall(f"{stderr}\n{command}")]
    return tuple(dict.fromkeys(path for path in named if path))[:_MOST_PATHS]
