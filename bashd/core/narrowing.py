"""Which of two values is narrower, key by key. Pure.

`within(key, a, b)` says that *a* grants nothing that *b* does not; `meet(key, a, b)`
grants what both grant. For every key, the meet lies within both of its arguments:
laying one file over another can take away, never give.

Paths are compared as the caller's: ``~/x`` lies within ``/home/u`` when that is the
caller's home.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from bashd.core.environment import name_matches
from bashd.core.policy import expand_path
from bashd.core.policy_schema import Key, Order, Value

Covers = Callable[[str, str], bool]


def within(key: Key, a: Value, b: Value, *, home: str) -> bool:
    """Whether *a* is as narrow as *b*, or narrower."""
    match key.order:
        case Order.SWITCH:
            return b or not a
        case Order.RANK:
            return key.words.index(str(a)) <= key.words.index(str(b))
        case Order.LIMIT:
            return b is None or (a is not None and a <= b)
        case Order.PATHS | Order.NAMES:
            covers = _covering(key, home)
            return all(any(covers(outer, item) for outer in b) for item in a)
        case Order.ADDED | Order.RULES:
            return set(b) <= set(a)
        case Order.FREE | Order.SETTINGS:
            return True
        case _ as never:
            assert_never(never)


def meet(key: Key, a: Value, b: Value, *, home: str) -> Value:
    """Return the widest value within both; *a* itself when it is within *b*."""
    match key.order:
        case Order.SWITCH:
            return a and b
        case Order.RANK | Order.LIMIT:
            return a if within(key, a, b, home=home) else b
        case Order.PATHS | Order.NAMES:
            covers = _covering(key, home)
            common = [x for x in a if any(covers(y, x) for y in b)]
            common += [y for y in b if any(covers(x, y) for x in a)]
            return a if within(key, a, b, home=home) else tuple(dict.fromkeys(common))
        case Order.ADDED | Order.RULES:
            return tuple(dict.fromkeys((*a, *b)))
        case Order.FREE | Order.SETTINGS:
            return a
        case _ as never:
            assert_never(never)


def _covering(key: Key, home: str) -> Covers:
    if key.order is Order.NAMES:
        return _name_covers
    return lambda outer, inner: _path_covers(
        expand_path(outer, home) or outer, expand_path(inner, home) or inner
    )


def _path_covers(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _name_covers(outer: str, inner: str) -> bool:
    # What inner's * stands for may be anything, so its fixed part has to decide.
    if inner.endswith("*") and not outer.endswith("*"):
        return False
    return name_matches(inner, outer)
