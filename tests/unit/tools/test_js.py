"""Numbers are printed as JavaScript prints them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bashd.tools.js import compact_json, number_json, number_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100, "100"),
        (100.0, "100"),
        (100.5, "100.5"),
        (0.1, "0.1"),
        (-0.0, "0"),
        (0, "0"),
        (-7, "-7"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (123456789012345680000.0, "123456789012345680000"),
        (1.5e300, "1.5e+300"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.25e-9, "1.25e-9"),
        (2**53 + 1, "9007199254740992"),
        (5e-324, "5e-324"),
        (float("nan"), "NaN"),
        (10**400, "Infinity"),
        (-(10**400), "-Infinity"),
    ],
)
def test_numbers_read_as_in_javascript(value: float, text: str) -> None:
    assert number_text(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_reads_back_as_itself(value: float) -> None:
    text = number_text(value)
    assert float(text) == value
    assert not text.endswith(".0")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_what_json_cannot_say_is_null(value: float) -> None:
    assert number_json(value) == "null"


def test_arrays_are_printed_without_spaces() -> None:
    assert compact_json(["a", "\u00e9"]) == '["a","\u00e9"]'
