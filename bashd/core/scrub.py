"""Which ambient variables never reach a command: credentials, and bashd's own names.

By name only: a credential under an innocent name (``DATABASE_URL``, ``DB_PASS``)
passes. Client and daemon both call this. Cheap to import: the command line loads it on
every call; what a command's environment is made of is in `bashd.core.environment`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping


def is_scrubbed(name: str) -> bool:
    """Whether the scrub removes an ambient variable of this name.

    True for a name that contains KEY, PASSWORD, SECRET or TOKEN anywhere, and for
    one that starts with BASHD_, in any case.
    """
    # casefold, not lower: it also folds letters that only look like ASCII ones.
    folded = name.casefold()
    # Spelled out: a third of the time of any() over a tuple, for every variable of
    # every call, on both sides of the socket.
    return (
        "key" in folded
        or "token" in folded
        or "secret" in folded
        or "password" in folded
        or folded.startswith("bashd_")
    )


def scrub(env: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Take credentials and managed names out of an ambient environment.

    Returns:
        What stays, in its order, and the removed names (never values), sorted.
    """
    kept: dict[str, str] = {}
    removed: list[str] = []
    for name, value in env.items():
        if is_scrubbed(name):
            removed.append(name)
        else:
            kept[name] = value
    return kept, tuple(sorted(removed))
