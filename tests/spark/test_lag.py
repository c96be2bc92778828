"""Lag of streams: exact within one store, and gone with its query."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest

from skipring.spark.lag import METRIC, LagListener, lag_of


def offsets(**topics: int) -> str:
    return json.dumps({t: {"store": "5eed", "epoch": 3, "offset": n} for t, n in topics.items()})


def test_lag_is_the_number_of_unread_offsets_of_each_topic() -> None:
    assert lag_of(offsets(a=3, b=9), offsets(a=10, b=9, c=7)) == {"a": 7, "b": 0}
    assert lag_of(offsets(a=9), offsets(a=3)) == {"a": 0}


def test_positions_in_different_stores_and_other_sources_have_no_lag() -> None:
    other = json.dumps({"a": {"store": "0ther", "epoch": 3, "offset": 99}})
    for end in (offsets(a=1), None, "", "null", '{"a": 3}', "[1]", "text", "7"):
        assert lag_of(end, other) == {}
        assert lag_of(other, end) == {}


def test_metric_has_the_lag_until_the_query_ends() -> None:
    registry = CollectorRegistry()
    listener = LagListener(registry)
    source = SimpleNamespace(endOffset=offsets(a=3), latestOffset=offsets(a=10))
    progress = SimpleNamespace(runId="r", id="q", name="orders", sources=[source])
    listener.onQueryProgress(cast("Any", SimpleNamespace(progress=progress)))
    expected = f'{METRIC}{{query="orders",topic="a"}} 7.0'
    assert expected in generate_latest(registry).decode()
    listener.onQueryTerminated(cast("Any", SimpleNamespace(runId="r")))
    assert expected not in generate_latest(registry).decode()
