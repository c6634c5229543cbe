"""Defaults and caps of a request."""

from __future__ import annotations

import math

import pytest

from bashd.core.errors import InvalidParamsError
from bashd.core.model import ExecRequest, ExecSpec, Mode
from bashd.core.resolve import resolve_request


def resolve(
    request: ExecRequest, *, timeout_ms: float = 120000, max_timeout_ms: float = 600000
) -> ExecSpec:
    return resolve_request(
        request,
        cwd="/ws",
        timeout_ms=timeout_ms,
        max_timeout_ms=max_timeout_ms,
        max_output_bytes=64000,
    )


def test_c133_defaults_are_filled_in_and_absent_keys_stay_absent() -> None:
    spec = resolve(ExecRequest("ls"))
    assert spec.timeout_ms == 120000
    assert spec.workdir == "/ws"
    assert spec.stdout_max_bytes == 64000
    keys = spec.to_dict().keys()
    assert {"owner", "sandbox_mode"} <= keys
    assert not {"stdin", "env"} & keys


def test_c134_a_timeout_is_capped() -> None:
    spec = resolve(ExecRequest("ls", timeout_ms=99999), max_timeout_ms=2000)
    assert spec.timeout_ms == 2000


def test_c135_the_default_is_capped_too() -> None:
    spec = resolve(ExecRequest("ls"), timeout_ms=5000, max_timeout_ms=1000)
    assert spec.timeout_ms == 1000


@pytest.mark.parametrize("value", [-1, 0, math.nan, math.inf, -math.inf, True])
def test_c137_a_timeout_that_is_none_is_refused_by_name(value: float) -> None:
    with pytest.raises(
        InvalidParamsError, match=r"request\.timeoutMs must be a positive finite number"
    ):
        resolve(ExecRequest("ls", timeout_ms=value))


def test_an_output_cap_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(InvalidParamsError, match=r"request\.stdoutMaxBytes"):
        resolve(ExecRequest("ls", stdout_max_bytes=0))


def test_an_integral_timeout_is_an_integer() -> None:
    spec = resolve(ExecRequest("ls", timeout_ms=100.0))
    assert repr(spec.timeout_ms) == "100"
    assert resolve(ExecRequest("ls", timeout_ms=0.5)).timeout_ms == 0.5


def test_a_relative_workdir_starts_at_the_cwd_and_keeps_its_dots() -> None:
    assert resolve(ExecRequest("ls", workdir="a/..")).workdir == "/ws/a/.."
    assert resolve(ExecRequest("ls", workdir="/other")).workdir == "/other"


def test_a_nul_in_the_command_is_refused() -> None:
    with pytest.raises(InvalidParamsError, match="NUL"):
        resolve(ExecRequest("echo \0"))


def test_what_the_caller_gave_is_passed_on() -> None:
    spec = resolve(
        ExecRequest("ls", owner="", sandbox_mode=Mode.READ_ONLY, env={"A": None})
    )
    assert spec.owner == ""
    assert spec.sandbox_mode is Mode.READ_ONLY
    assert spec.env == {"A": None}
