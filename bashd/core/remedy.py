"""Why something was refused, and the narrowest line of a policy that would allow it. Pure.

A refusal and the policy it happened under lead to the key that decided, and to what
would have to stand in a policy file. Some walls have no such line: what a confining
mode never lets through is said to be so, because the honest answer is then another mode
or another way to do the job. Nothing here grants anything: the text is for review.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from bashd.core.model import Denial, Mode
from bashd.core.narrowing import within
from bashd.core.paths import is_below, is_below_any
from bashd.core.policy import Policy, expand_path
from bashd.core.policy_schema import KEYS, Order
from bashd.core.policy_text import to_toml

_LOOKS: Final = ("read", "execute")
_KERNEL: Final = ("/proc", "/sys")
_BROAD: Final = (
    "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/boot", "/var", "/opt", "/srv",
    "/home", "/root", "/run", "/usr/bin", "/usr/lib", "/usr/local", "/usr/local/bin",
)  # fmt: skip
"""Folders that hold what others run or rely on."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Under what a command ran. Paths are canonical unless a field says otherwise."""

    policy: Policy
    """As merged, with paths as the files spell them."""
    mode: Mode
    runner: str | None
    workspace: str
    home: str
    masked: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    """bashd's own folders."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One refusal explained."""

    rule: str
    """What refused it, as a line of a policy or in words."""
    key: str = ""
    """Dotted key of that line; empty where it is none of a policy's."""
    grants: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Dotted keys and values that would allow it; empty where nothing would."""
    note: str = ""
    """What to think of before allowing it, or why nothing allows it."""

    @property
    def line(self) -> str:
        """The grants as TOML on one line; empty where there are none."""
        return "; ".join(filter(None, to_toml(self.grants).splitlines()))


def remedy(denial: Denial, under: Situation) -> Remedy:
    """Explain one refusal.

    Args:
        denial: With a canonical path, if it has one.
        under: What the command ran under.
    """
    operation, path = denial.operation or "access", denial.path
    if operation in ("signal", "trace"):
        return Remedy(
            "processes outside the session are out of reach in every confining mode",
            note="start what is to be signalled as a task of the same session",
        )
    if operation == "mount":
        return _namespaces(under)
    if path is None:
        return Remedy(
            f'mode = "{under.mode}"',
            "mode",
            note="what was refused is not known by name; run it again with only the"
            " step that failed",
        )
    if operation in ("connect", "bind"):
        return _socket(path, under)
    return _file(operation, path, under)


def _file(operation: str, path: str, under: Situation) -> Remedy:
    if is_below_any(path, under.own) and not is_below_any(path, under.writable):
        return Remedy("bashd's own state is hidden", note="no policy opens it")
    mask = next((m for m in under.masked if is_below(path, m)), None)
    if mask is not None:
        return _mask(path, mask, under)
    if operation in _LOOKS:
        return Remedy(
            "no rule: everything that is not masked may be read",
            note="the file's own mode or owner refused it",
        )
    guarded = next(
        (p for p in under.protected if is_below(path, p) or is_below(p, path)), None
    )
    if guarded is not None:
        return _protected(path, guarded, under)
    return _change(path, under)


def _change(path: str, under: Situation) -> Remedy:
    if is_below(path, "/dev") and not is_below(path, "/dev/shm"):  # noqa: S108
        devices = {"devices": (*under.policy.devices, path)}
        return Remedy("devices", "devices", devices, "a device is granted whole")
    if is_below_any(path, _KERNEL):
        return Remedy(
            "the kernel's settings stay as they are in every confining mode",
            note=f'only mode = "{Mode.DANGER_FULL_ACCESS}" lets a command change them',
        )
    if is_below_any(path, under.writable):
        return Remedy(
            "no rule: the place is writable",
            note="the file's own mode or owner, or a read-only disk, refused it",
        )
    return _outside(path, under)


def _mask(path: str, mask: str, under: Situation) -> Remedy:
    entry = next(
        (e for e in under.policy.masked if _stands_for(e, mask, under.home)), None
    )
    if entry is None:
        return Remedy(
            f"masked: {mask} is hidden under another name of it",
            "masked",
            note="`bashd policy show` lists the entries of masked",
        )
    whole = "" if path == mask else f"it hides all of {mask}, and opens all of it"
    return Remedy(
        f"masked: {entry}",
        "masked",
        {"unmasked": (entry,)},
        whole or "what it hides is a secret as a rule",
    )


def _stands_for(entry: str, path: str, home: str) -> bool:
    expanded = expand_path(entry, home) or entry
    parent, name = posixpath.split(expanded)
    return posixpath.dirname(path) == parent and fnmatch.fnmatchcase(
        posixpath.basename(path), name
    )


def _protected(path: str, guarded: str, under: Situation) -> Remedy:
    inner = path if is_below(path, guarded) else guarded
    entry = next((e for e in under.policy.protected if _lies_in(inner, e)), None)
    if entry is None:
        return Remedy(
            f"protected: {guarded}",
            "protected",
            note="it is protected because programs outside the sandbox run what it says",
        )
    return Remedy(
        f"protected: {entry}",
        "protected",
        {"unprotected": (entry,)},
        "programs outside the sandbox, such as git or an editor, run what stands there",
    )


def _lies_in(path: str, entry: str) -> bool:
    return f"/{entry}/" in f"{path}/"


def _outside(path: str, under: Situation) -> Remedy:
    write = Mode.WORKSPACE_WRITE
    narrow = under.mode is Mode.READ_ONLY
    rule, key = f'mode = "{under.mode}"', "mode"
    if is_below(path, under.workspace) and narrow:
        return Remedy(rule, key, {"mode": write})
    if not narrow:
        rule, key = "writable", "writable"
    # Only folders can be granted: what changes an entry mostly replaces it.
    folder = posixpath.dirname(path)
    if folder == "/":
        return Remedy(rule, key, note="the root folder itself cannot be granted")
    listed = () if narrow else under.policy.writable
    grants: dict[str, Any] = {"writable": (*listed, _spelled(folder, under.home))}
    if narrow:
        grants["mode"] = write
    return Remedy(rule, key, grants, _warning(folder, under))


def _warning(folder: str, under: Situation) -> str:
    if folder in _BROAD:
        return f"{folder} holds what other programs rely on: grant a folder below it"
    if is_below(under.home, folder):
        return f"{folder} holds the whole home folder: grant a folder below it"
    return ""


def _spelled(path: str, home: str) -> str:
    below = home not in ("/", path) and is_below(path, home)
    return f"~{path[len(home.rstrip('/')) :]}" if below else path


def _socket(path: str, under: Situation) -> Remedy:
    if path.startswith("@"):
        return Remedy(
            "abstract sockets of the host are out of reach in every confining mode",
            note="a server that the session itself starts can be reached",
        )
    if not path.startswith("/"):
        return network_remedy(under)
    granted = under.policy.sockets.grant
    grants: dict[str, Any] = {"sockets.grant": (*granted, _spelled(path, under.home))}
    note = "whoever answers there acts with its own rights, outside every wall"
    if under.runner == "landlock":
        grants["sockets.unix"] = True
        note += "; the landlock runner cannot tell one socket from another"
    return Remedy("sockets.grant", "sockets.grant", grants, note)


def _namespaces(under: Situation) -> Remedy:
    if under.policy.namespaces:
        return Remedy("mounts of the cell stay as they are", note="nothing allows it")
    return Remedy(
        "namespaces = false",
        "namespaces",
        {"namespaces": True},
        "a larger part of the kernel can be reached then",
    )


def network_remedy(under: Situation) -> Remedy:
    """Explain a command that failed for want of a network."""
    return Remedy(
        f'network = "{under.policy.network}"',
        "network",
        {"network": "host"},
        "it can send anything it can read to anywhere",
    )


def combined(remedies: tuple[Remedy, ...], mode: Mode) -> dict[str, Any]:
    """Return the keys of one policy that allows all of it; empty for nothing.

    Args:
        remedies: What is to be allowed.
        mode: The mode that the command ran in.
    """
    values: dict[str, Any] = {}
    for one in remedies:
        for key, value in one.grants.items():
            if key == "mode":
                continue
            if KEYS[key].order in (Order.PATHS, Order.NAMES, Order.FREE):
                values[key] = tuple(dict.fromkeys((*values.get(key, ()), *value)))
            else:
                values[key] = value
    wide = any(one.grants.get("mode") is Mode.WORKSPACE_WRITE for one in remedies)
    if not values and not wide:
        return {}
    return {"mode": Mode.WORKSPACE_WRITE if wide else mode, **values}


def allows(bounds: Mapping[str, Any], key: str, value: Any, *, home: str) -> bool:  # noqa: ANN401 - a policy's value
    """Whether a ceiling leaves room for a grant.

    Args:
        bounds: Dotted policy key to the widest value allowed.
        key: Of the grant.
        value: Likewise.
        home: The caller's home folder.
    """
    taken_from = KEYS[key].takes_from
    if taken_from is not None:
        return not set(bounds.get(taken_from, ())) & set(value)
    return key not in bounds or within(KEYS[key], value, bounds[key], home=home)
