"""Calls that only read, over a connection that is made anew when it is lost.

A task goes on while nobody is connected, so whoever follows one from another machine
need not stop because a network did. Only for methods that change nothing: they may be
asked again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from bashd.core.errors import ConnectError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bashd.client.link import Link

_PATIENCE_S: Final = 120.0
"""Seconds without an answer after which the other machine counts as gone."""
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0


class SteadyLink:
    """Asks over the links that *open_link* gives, one after the other.

    On this machine a lost daemon is lost: only links to another one are made anew.
    """

    def __init__(self, open_link: Callable[[], Link]) -> None:
        self._open_link = open_link
        self._link = open_link()

    def call(self, method: str, params: Mapping[str, object]) -> Any:  # noqa: ANN401
        """Send a request that only reads, until it is answered.

        Raises:
            BashdError: The daemon's error; `ConnectError` when the very first try gets
                nowhere, or none does for two minutes.
        """
        give_up = time.monotonic() + _PATIENCE_S
        pause_s, worked = _FIRST_PAUSE_S, False
        while True:
            try:
                return self._link.call(method, params)
            except ConnectError:
                if self._link.hello is not None:
                    give_up = time.monotonic() + _PATIENCE_S
                    pause_s, worked = _FIRST_PAUSE_S, True
                # Before there was a connection there is none to come back to.
                never = self._link.far is None or not worked
                if never or time.monotonic() > give_up:
                    raise
            self._link.close()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self._link = self._open_link()
