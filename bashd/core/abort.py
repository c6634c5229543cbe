"""A one-shot abort signal that any event loop, or none, can listen to."""

from __future__ import annotations

from collections.abc import Callable


class AbortSignal:
    """Tells a running call that its caller has withdrawn it.

    Not thread-safe: abort it from the loop that runs the call.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def aborted(self) -> bool:
        """Whether `abort` was called."""
        return self._reason is not None

    @property
    def reason(self) -> str:
        """Why; ``aborted`` when no reason was given."""
        return self._reason or "aborted"

    def abort(self, reason: str = "aborted") -> None:
        """Fire once; later calls change nothing."""
        if self._reason is not None:
            return
        self._reason = reason or "aborted"
        for listener in list(self._listeners):
            listener()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call *listener* when the signal fires (now, if it has). Returns an undo."""
        if self.aborted:
            listener()
            return lambda: None
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe
