"""How the contract prints numbers and JSON: the way JavaScript does.

The texts models see were fixed by a program written in JavaScript; ``100.0`` must
read ``100`` and a NaN in JSON must read ``null``.
Source: ECMA-262, Number::toString and SerializeJSONProperty.
"""

from __future__ import annotations

import json
import math
from typing import Final

_FIXED_MAX: Final = 21
_FIXED_MIN: Final = -7
"""Number::toString uses positional notation for exponents between these two."""


def number_text(value: float) -> str:
    """Print *value* as ``String(value)`` does."""
    try:
        number = float(value)
    except OverflowError:
        return "Infinity" if value > 0 else "-Infinity"
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    return sign + _positive_text(abs(number))


def number_json(value: float) -> str:
    """Print *value* as ``JSON.stringify(value)`` does: what is not finite is null."""
    text = number_text(value)
    return "null" if text.lstrip("-") in ("NaN", "Infinity") else text


def compact_json(value: object) -> str:
    """Print strings, lists and dicts as ``JSON.stringify`` does."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _positive_text(number: float) -> str:
    # repr() gives the shortest digits that round-trip, the same that ECMA-262 asks
    # for; only the placing of the decimal point differs.
    mantissa, _, exponent = f"{number!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(digits)
    point = len(whole) - leading + int(exponent or 0)
    digits = digits.rstrip("0")
    if len(digits) <= point <= _FIXED_MAX:
        return digits + "0" * (point - len(digits))
    if 0 < point <= _FIXED_MAX:
        return f"{digits[:point]}.{digits[point:]}"
    if _FIXED_MIN < point - 1 < 0:
        return f"0.{'0' * -point}{digits}"
    power = point - 1
    head = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
    return f"{head}e{'+' if power > 0 else '-'}{abs(power)}"
