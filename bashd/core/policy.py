"""What a policy is: a value, made from the text of files. Pure.

`parse_policy` turns one file into a `PolicyFile`: only what the file states.
`bashd.core.policy_layers` lays such files over one another and makes the `Policy` that
cells and tasks are built from. Keys, kinds and their order from narrow to wide are in
`bashd.core.policy_schema`; which files there are is `bashd.daemon.policies`' business.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from bashd.core.environment import EnvironmentRules
from bashd.core.errors import InvalidParamsError
from bashd.core.kinds import BadValueError, text
from bashd.core.model import Mode
from bashd.core.policy_schema import KEYS, KINDS, Value
from bashd.core.policy_values import HOME, RUNTIME_DIR, CommandRule
from bashd.core.tables import parse_toml, read_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BUILT_IN: Final = "built in"
"""Source of a value that no file states."""

NAME: Final = text(
    'a policy\'s name: letters, digits, ".", "_" and "-", not starting with a "."',
    r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}",
)
"""Names are file names without ``.toml``; none leads out of its folder."""


@dataclass(frozen=True, slots=True)
class SocketRules:
    """Which Unix sockets a command may reach."""

    unix: bool = False
    """On the landlock runner: whether ``socket(AF_UNIX)`` works at all."""
    grant: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a cell's processes; None is not limited."""

    pids: int | None = None
    memory_bytes: int | None = None
    cpu_weight: int | None = None
    """1 to 10000, as cgroup v2 counts; None leaves the kernel's 100."""
    cpu_s: int | None = None
    job_s: int | None = None
    """Seconds all commands of a job may take together, from the first one's start."""
    wall_s: int | None = None
    """Seconds a foreground command may take, instead of the executor's own default and
    cap; None leaves those."""
    file_size_bytes: int | None = None
    shm_bytes: int | None = None
    """What ``/dev/shm`` of a bwrap cell holds; None leaves the kernel's half of RAM."""
    open_files: int | None = None
    core_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """The merged effect of every file that has a say.

    Paths may still start with ``~`` or ``$XDG_RUNTIME_DIR``; see `expand`.
    """

    name: str
    mode: Mode = Mode.READ_ONLY
    description: str = ""
    writable: tuple[str, ...] = ()
    """Roots besides the workspace; they count under workspace-write only."""
    masked: tuple[str, ...] = ()
    """``* ? [`` in the last component at most."""
    protected: tuple[str, ...] = ()
    """Relative to each writable root."""
    home: str = "host"
    """``host`` or ``private``."""
    visible: tuple[str, ...] = ()
    """In a private home, read-only; what *writable* names is there as well."""
    scratch: bool = True
    network: str = "host"
    """``host`` or ``none``."""
    nested: bool = False
    namespaces: bool = False
    devices: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    """``ssh``, ``gpg``."""
    sockets: SocketRules = field(default_factory=SocketRules)
    environment: EnvironmentRules = field(default_factory=EnvironmentRules)
    limits: Limits = field(default_factory=Limits)
    commands: tuple[tuple[CommandRule, ...], ...] = ()
    """Lists of rules, one a file; in each the first match decides, and the strictest
    of their decisions counts."""
    writable_within: tuple[str, ...] | None = field(default=None, compare=False)
    """The ceiling's bound on *writable*, for when the paths have become canonical;
    None where no ceiling speaks of it."""
    sources: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )
    """Dotted key to the files its value comes from; `BUILT_IN` where none says it."""
    digest: str = field(init=False, compare=False, repr=False)
    """Hex digest of the effect: equal digests confine alike, whatever the files."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", _digest(values_of(self)))

    @property
    def writable_roots(self) -> tuple[str, ...]:
        """The extra writable roots that the mode lets count."""
        return self.writable if self.mode is Mode.WORKSPACE_WRITE else ()


EFFECT: Final = tuple(name for name, key in KEYS.items() if key.takes_from is None)
"""Keys of a merged policy: all but those that take entries out of others."""

_FIELDS: Final = {"command": "commands"}
"""Where a field is not named as its key: the file has one table a rule."""


def values_of(policy: Policy) -> dict[str, Any]:
    """Return a policy's effect by dotted key."""
    values: dict[str, Any] = {}
    for name in EFFECT:
        value: Any = policy
        for part in name.split("."):
            value = getattr(value, _FIELDS.get(part, part))
        values[name] = value
    return values


def from_values(
    name: str, values: Mapping[str, Any], sources: Mapping[str, Iterable[str]]
) -> Policy:
    """Build a policy from values by dotted key; those not named keep their default."""
    fields: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {"sockets": {}, "environment": {}, "limits": {}}
    for key, value in values.items():
        group, _, leaf = key.rpartition(".")
        if group:
            groups[group][leaf] = value
        else:
            fields[_FIELDS.get(key, key)] = value
    return Policy(
        name=name,
        sockets=SocketRules(**groups["sockets"]),
        environment=EnvironmentRules(**groups["environment"]),
        limits=Limits(**groups["limits"]),
        sources=MappingProxyType({key: tuple(s) for key, s in sources.items()}),
        **fields,
    )


def jsonable(value: Value) -> Value:
    """Return a policy value as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mode):
        return str(value)
    if isinstance(value, tuple):
        return [jsonable(item) for item in cast("tuple[Value, ...]", value)]
    return value


def _digest(values: Mapping[str, Any]) -> str:
    effect = {k: jsonable(v) for k, v in values.items() if k != "description"}
    text = json.dumps(effect, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check_name(name: str) -> str:
    """Return *name* if it can name a policy.

    Raises:
        InvalidParamsError: It cannot, a path being the usual reason.
    """
    try:
        return NAME.check(name)
    except BadValueError as error:
        raise InvalidParamsError(f"policy {error.text}") from None


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """What one file states, and nothing else."""

    source: str
    """The file's path."""
    values: Mapping[str, Any]
    """Dotted key to checked value."""


def parse_policy(text: str, source: str) -> PolicyFile:
    """Parse the text of a policy file.

    Args:
        text: TOML.
        source: The file's path, for messages and as the source of its values.

    Raises:
        ConfigError: Names the file, the key and the fix.
    """
    values = read_keys(parse_toml(text, source), KINDS, source)
    return PolicyFile(source, MappingProxyType(values))


def expand_path(path: str, home: str, runtime_dir: str | None = None) -> str | None:
    """Return *path* with its leading ``~`` or ``$XDG_RUNTIME_DIR`` put in.

    None when it needs a runtime folder and there is none: then it does not exist.
    """
    for start, folder in ((HOME, home), (RUNTIME_DIR, runtime_dir)):
        if path == start or path.startswith(start + "/"):
            if folder is None:
                return None
            return folder.rstrip("/") + path[len(start) :] or "/"
    return path


def expand(policy: Policy, home: str, runtime_dir: str | None = None) -> Policy:
    """Return the policy with absolute paths only.

    Args:
        policy: As merged.
        home: The caller's home folder, absolute.
        runtime_dir: The caller's ``$XDG_RUNTIME_DIR``; None where there is none.
    """

    def expanded(paths: tuple[str, ...]) -> tuple[str, ...]:
        found = (expand_path(path, home, runtime_dir) for path in paths)
        return tuple(dict.fromkeys(path for path in found if path is not None))

    return replace(
        policy,
        writable=expanded(policy.writable),
        writable_within=None
        if policy.writable_within is None
        else expanded(policy.writable_within),
        masked=expanded(policy.masked),
        visible=expanded(policy.visible),
        sockets=replace(policy.sockets, grant=expanded(policy.sockets.grant)),
    )
