"""The library for programs that run commands through bashd.

`connect` is for asyncio and trio, `connect_sync` for everything else. Both are loaded
when they are first named: the command line uses parts of this package that must not
wait for either.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what `typing` would say, without its three milliseconds
if TYPE_CHECKING:
    from bashd.client.client import Client
    from bashd.client.opening import connect
    from bashd.client.sync import SyncClient, connect_sync

__all__ = ["Client", "SyncClient", "connect", "connect_sync"]

_HOMES = {
    "Client": "bashd.client.client",
    "SyncClient": "bashd.client.sync",
    "connect": "bashd.client.opening",
    "connect_sync": "bashd.client.sync",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415 - only where a name is used

    return getattr(importlib.import_module(_HOMES[name]), name)
