"""The caller's environment as it may cross the socket."""

from __future__ import annotations

from bashd.core.scrub import scrub

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping


def ambient_of(environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return what of *environ* is sent, and the names of what is not.

    Credentials stay here; so does a variable that is not valid UTF-8, which JSON
    cannot carry: losing it is better than being unable to run anything. Of bashd's own
    names the daemon needs one: where the caller has its BASHD_HOME.
    """
    kept, removed = scrub(environ)
    if home := environ.get("BASHD_HOME", "").strip():
        kept["BASHD_HOME"] = home
    if _is_unicode("".join(kept)) and _is_unicode("".join(kept.values())):
        return kept, removed
    odd = [name for name, value in kept.items() if not _is_unicode(name + value)]
    for name in odd:
        del kept[name]
    shown = [name.encode(errors="backslashreplace").decode() for name in odd]
    return kept, tuple(sorted([*removed, *shown]))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
