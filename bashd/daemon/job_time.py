"""How long a session's job may be at work, and how much of that is left.

A job is a session that was opened or that has a job's name: its time runs from its
first command under a policy that states ``limits.job_s``. Any other session is only
where somebody happens to be: there each call is a job of its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import trio

from bashd.core.errors import TimeOverError

_FORGET_S = 3600.0
"""A name that comes again so long after its time was over is another job's: a nightly
one, say, that is always called the same."""


def _now() -> float:
    # Goes on under the next daemon, and no clock that is set shortens a job.
    return time.clock_gettime(time.CLOCK_MONOTONIC)


@dataclass(slots=True)
class JobTime:
    """One session's. Seconds are of the kernel's monotonic clock."""

    began: float | None = None
    """When its first command was asked for; None while no policy bounds it."""
    ends: float | None = None
    watch: trio.CancelScope | None = None
    """Of who waits for its end; cancelled when the session closes before."""

    def left(self, limit_s: float) -> float:
        """Return what is left of *limit_s* seconds; the first call starts the clock.

        Raises:
            TimeOverError: Nothing.
        """
        now = _now()
        if self.began is None or self.began > now:
            # Later than now is of before a reboot.
            self.began = now
        self.ends = self.began + limit_s
        if self.ends <= now:
            raise TimeOverError(
                f"the job's time is over: limits.job_s gives it {limit_s:g} s, and it"
                f" began {now - self.began:.0f} s ago; nothing was run"
            )
        return self.ends - now

    @property
    def over_for(self) -> float:
        """Seconds since the end; negative before."""
        return float("-inf") if self.ends is None else _now() - self.ends

    @property
    def is_over(self) -> bool:
        """Whether there was a bound and it has been reached."""
        return self.over_for >= 0

    @property
    def is_forgotten(self) -> bool:
        """Whether the job's name may be used for another one."""
        return self.over_for > _FORGET_S


def hint(limit_s: float) -> str:
    """Return the line for a command that was ended because its job's time was over."""
    return f"the job's time was over: limits.job_s gives it {limit_s:g} s"
