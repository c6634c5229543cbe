"""Counters and their text, read back by Prometheus' own parser."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from bashd.core.model import Mode, RunResult, SandboxFacts, StreamOutput
from bashd.daemon.metrics import BOUNDS_S, Histogram, Metrics


def result(
    exit_code: int | None = 0,
    *,
    timed_out: bool = False,
    denied: bool = False,
    size: int = 0,
) -> RunResult:
    return RunResult(
        exit_code=exit_code,
        signal=None if exit_code is not None else "SIGKILL",
        timed_out=timed_out,
        aborted=False,
        timeout_ms=1,
        stdout=StreamOutput("", bytes=size),
        stderr=StreamOutput(""),
        sandbox=SandboxFacts(Mode.READ_ONLY, denied=denied),
    )


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
    }


def test_commands_are_counted_by_mode_and_outcome():
    metrics = Metrics()
    for one in (result(), result(), result(2), result(None), result(1, timed_out=True)):
        metrics.run_ended("read-only", one, 0.01)
    found = {
        dict(labels)["outcome"]: value
        for (name, labels), value in samples(metrics).items()
        if name == "bashd_commands_total"
    }
    assert found == {"succeeded": 2, "failed": 1, "signalled": 1, "timed_out": 1}


def test_denials_refusals_and_output_are_counted():
    metrics = Metrics()
    metrics.run_ended("read-only", result(1, denied=True, size=700), 0.01)
    metrics.refused("NOT_ALLOWED")
    found = samples(metrics)
    labels = frozenset
    assert found["bashd_denials_total", labels({("mode", "read-only")})] == 1
    assert found["bashd_refused_calls_total", labels({("code", "NOT_ALLOWED")})] == 1
    assert found["bashd_output_bytes_total", labels({("stream", "stdout")})] == 700


def test_gauges_are_read_when_asked_for():
    now = [1.0]
    metrics = Metrics({"bashd_cells": ("Live cells.", lambda: now[0])})
    now[0] = 7
    assert samples(metrics)["bashd_cells", frozenset()] == 7


@given(st.lists(st.floats(0, 1000)))
def test_each_bound_counts_all_that_is_not_longer(durations: list[float]):
    metrics = Metrics(prepared=Histogram())
    for duration in durations:
        metrics.prepared.add(duration)
    found = samples(metrics)
    for bound in BOUNDS_S:
        key = ("bashd_prepare_seconds_bucket", frozenset({("le", f"{bound:g}")}))
        assert found[key] == sum(duration <= bound for duration in durations)
    assert found["bashd_prepare_seconds_count", frozenset()] == len(durations)
