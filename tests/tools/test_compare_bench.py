"""Comparison of two checkouts: the measures it reads and the table it prints."""

import json

from tools.compare_bench import Reading, readings, table


def test_readings_keep_known_measures_and_skip_ratios() -> None:
    lines = [
        json.dumps({"job": "latency", "p50_ms": 1.5, "p50_ms_max": 2.0, "n": 64}),
        json.dumps({"job": "history", "cpu_s": 0.4}),
        json.dumps({"ratios": {"p50_ms": 0.1}}),
    ]
    assert list(readings(lines)) == [
        Reading("latency", "p50_ms", 1.5),
        Reading("history", "cpu_s", 0.4),
    ]


def test_table_shows_medians_and_their_ratio_for_measures_of_both() -> None:
    old = {("latency", "p50_ms"): [1.0, 2.0, 9.0], ("history", "cpu_s"): [1.0]}
    new = {("latency", "p50_ms"): [3.0]}
    assert table(old, new).splitlines()[2:] == ["| latency: p50, ms | 2 | 3 | 1.50 |"]
