"""bashd.toml: every key, its default and what it must be. Pure.

One frozen dataclass a section; a field's default and kind stand beside it and nowhere
else. Reading the file is the daemon's business (`bashd.daemon.configuration`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, cast

from bashd.core.ceiling import Ceiling, Ceilings, parse_ceilings
from bashd.core.errors import ConfigError
from bashd.core.kinds import (
    FLAG,
    BadValueError,
    Kind,
    absolute_path,
    list_of,
    number,
    shown,
    text,
    whole,
    word,
)
from bashd.core.model import Mode
from bashd.core.policy import NAME
from bashd.core.tables import parse_toml, read_keys

MAX_GRACE_MS: Final = 2_147_483_647
"""Largest delay a 32-bit timer takes; the contract's bound of ``grace_ms``."""

_KIND: Final = "kind"
_PATH: Final = absolute_path()
_POSITIVE: Final = number()
_BYTES: Final = whole()
_COUNT: Final = whole()


def _is(kind: Kind[Any]) -> dict[str, Kind[Any]]:
    """Say of which kind a key is."""
    return {_KIND: kind}


def _mode(value: object) -> Mode:
    return Mode(word(*(str(mode) for mode in Mode)).check(value))


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """``[executor]``: timeouts and output of single commands."""

    cwd: str | None = field(default=None, metadata=_is(_PATH))
    """Default workdir; None is the daemon's own."""
    timeout_ms: int | float = field(default=120_000, metadata=_is(_POSITIVE))
    max_timeout_ms: int | float = field(default=600_000, metadata=_is(_POSITIVE))
    """Caps a requested timeout, and the default one too."""
    max_output_bytes: int = field(default=64_000, metadata=_is(_BYTES))
    """Kept of each stream, counted from its end."""
    max_spill_bytes: int = field(default=64 * 1024 * 1024, metadata=_is(_BYTES))
    """Of each stream, on disk."""
    grace_ms: int | float = field(default=3_000, metadata=_is(number(MAX_GRACE_MS)))
    """Between TERM and KILL; also how long a pipe may outlive its shell."""


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """``[sandbox]``: what confines commands, and how far by default."""

    mode: Mode = field(
        default=Mode.READ_ONLY,
        metadata=_is(Kind(_mode, {"enum": [str(m) for m in Mode]})),
    )
    """Of calls and sessions that say nothing."""
    policy: str | None = field(default=None, metadata=_is(NAME))
    """Of calls and sessions that say nothing; None is the policy named as *mode*."""
    workspace_root: str | None = field(default=None, metadata=_is(_PATH))
    """Writable root of calls without a session; None is their cwd."""
    probe_timeout_ms: int | float = field(default=5_000, metadata=_is(_POSITIVE))
    bwrap_path: str | None = field(default=None, metadata=_is(_PATH))
    """None looks in the system's folders (/usr/bin, /bin, /usr/local/bin)."""
    runner: str = field(default="auto", metadata=_is(word("auto", "bwrap", "landlock")))


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """``[daemon]``: the service itself."""

    group: str | None = field(default=None, metadata=_is(text("the name of a group")))
    """Group of root's socket; its members are served. None serves root alone."""
    allow_root: bool = field(default=True, metadata=_is(FLAG))
    """Whether a root daemon serves root."""
    state_dir: str | None = field(default=None, metadata=_is(_PATH))
    """None is /var/lib/bashd for root, else ``$XDG_STATE_HOME/bashd``."""
    bashd_home: str | None = field(default=None, metadata=_is(_PATH))
    """Value of ``BASHD_HOME`` in commands; None is the caller's, else ``~/.bashd``."""
    confined_callers: tuple[str, ...] = field(
        default=(),
        metadata=_is(
            list_of(
                text(
                    "a systemd unit, such as ci.service, or a control group's path",
                    r"[^/\s]+\.\w+|/\S+",
                )
            )
        ),
    )
    """Units or control groups whose processes may run with no_new_privs and still
    count as ordinary callers."""
    cell_idle_s: int | float = field(default=300, metadata=_is(_POSITIVE))
    """An idle cell ends after this."""
    spares: int = field(default=3, metadata=_is(whole(1, 64)))
    """Children that wait in each cell: a pipeline of calls finds one ready."""
    cgroups: bool = field(default=True, metadata=_is(FLAG))
    """Whether each command gets a cgroup of its own, where the daemon may make any."""
    orphan_timeout_s: int | float = field(default=60, metadata=_is(_POSITIVE))
    """How long tasks live on after their daemon was killed."""


@dataclass(frozen=True, slots=True)
class SessionsConfig:
    """``[sessions]``: callers' long-lived contexts."""

    idle_timeout_s: int | float = field(default=86_400, metadata=_is(_POSITIVE))
    """A session without connection, call or running task is closed after this. A day:
    last evening's output is still there next morning."""
    default_idle_timeout_s: int | float = field(default=86_400, metadata=_is(_POSITIVE))
    """The same for default sessions, which commands without ``--session`` share."""


@dataclass(frozen=True, slots=True)
class ApprovalConfig:
    """``[approval]``: who is asked for wider modes."""

    policy: str = field(default="ask", metadata=_is(word("ask", "never")))
    """Of sessions that say nothing."""
    wait_s: int | float = field(default=300, metadata=_is(_POSITIVE))
    """How long a watcher may take to answer."""


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """``[limits]``: quotas of each user, unless the field says otherwise."""

    sessions: int = field(default=1_000, metadata=_is(_COUNT))
    tasks: int = field(default=2_000, metadata=_is(_COUNT))
    """Running background tasks."""
    cells: int = field(default=512, metadata=_is(_COUNT))
    """Live cells; over it the longest idle one ends first."""
    connections: int = field(default=1_000, metadata=_is(_COUNT))
    session_output_bytes: int = field(default=4 * 1024**3, metadata=_is(_BYTES))
    """Kept on disk for one session; over it the oldest finished output goes."""
    output_bytes: int = field(default=16 * 1024**3, metadata=_is(_BYTES))
    """Kept on disk by the whole daemon."""


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """``[audit]``: the log of who ran what."""

    enabled: bool = field(default=True, metadata=_is(FLAG))
    path: str | None = field(default=None, metadata=_is(_PATH))
    """None is ``audit.jsonl`` in the state folder."""
    command_text: bool = field(default=True, metadata=_is(FLAG))
    """Whether commands are written out; their digest always is."""
    rotate_bytes: int = field(default=64 * 1024 * 1024, metadata=_is(_BYTES))
    keep_files: int = field(default=8, metadata=_is(_COUNT))


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """``[metrics]``: figures for Prometheus, on a socket beside the daemon's."""

    enabled: bool = field(default=True, metadata=_is(FLAG))
    group: str | None = field(default=None, metadata=_is(text("the name of a group")))
    """Whose members may read them too; None: only the daemon's own user."""
    text_file: str | None = field(default=None, metadata=_is(_PATH))
    """Also written here, for the node exporter's textfile collector."""
    text_interval_s: int | float = field(default=15, metadata=_is(_POSITIVE))
    """How often."""


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration."""

    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    daemon: DaemonConfig = field(default_factory=DaemonConfig)
    sessions: SessionsConfig = field(default_factory=SessionsConfig)
    approval: ApprovalConfig = field(default_factory=ApprovalConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    ceilings: Ceilings = field(default_factory=Ceilings)
    source: str = "built in"
    """The file's path."""

    def ceiling_of(self, user: str, groups: Iterable[str], *, home: str) -> Ceiling:
        """Return the bound for one caller; see `Ceilings.of`."""
        return self.ceilings.of(user, groups, home=home)

    def limits_under(self, ceiling: Ceiling) -> LimitsConfig:
        """Return the quotas of the caller whose ceiling this is."""
        return replace(self.limits, **ceiling.quotas)

    def default_policy(self, ceiling: Ceiling) -> str:
        """Return the policy of a call that names neither a policy nor a mode."""
        configured = ceiling.default_policy or self.sandbox.policy
        return configured or str(ceiling.clamp(self.sandbox.mode))


_SECTIONS: Final[Mapping[str, type[Any]]] = {
    "executor": ExecutorConfig,
    "sandbox": SandboxConfig,
    "daemon": DaemonConfig,
    "sessions": SessionsConfig,
    "approval": ApprovalConfig,
    "limits": LimitsConfig,
    "audit": AuditConfig,
    "metrics": MetricsConfig,
}


def _kinds_of(section: type[Any]) -> dict[str, Kind[Any]]:
    return {f.name: f.metadata[_KIND] for f in fields(section)}


def _any_table(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise BadValueError(f"must be a table, not {shown(value)}")
    return cast("Mapping[str, object]", value)


_CEILING: Final = "ceiling"
KINDS: Final[Mapping[str, Kind[Any]]] = {
    f"{name}.{key}": kind
    for name, section in _SECTIONS.items()
    for key, kind in _kinds_of(section).items()
} | {_CEILING: Kind(_any_table, {"type": "object"})}
"""Every key of bashd.toml, dotted."""


def parse_config(text: str, source: str) -> Config:
    """Parse the text of bashd.toml.

    Args:
        text: TOML.
        source: The file's path, for messages.

    Raises:
        ConfigError: Names the file, the key and the fix.
    """
    values = read_keys(parse_toml(text, source), KINDS, source)
    ceiling = values.pop(_CEILING, {})
    stated: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    for dotted, value in values.items():
        section, _, key = dotted.partition(".")
        stated[section][key] = value
    sections: dict[str, Any] = {
        name: cls(**stated[name]) for name, cls in _SECTIONS.items()
    }
    quotas = _kinds_of(LimitsConfig)
    config = Config(
        **sections, ceilings=parse_ceilings(ceiling, quotas, source), source=source
    )
    if config.sandbox.policy is not None and "mode" in stated["sandbox"]:
        raise ConfigError(
            f"{source}: sandbox.mode and sandbox.policy both choose the default; a"
            " policy brings its own mode, so keep one of them"
        )
    return config
