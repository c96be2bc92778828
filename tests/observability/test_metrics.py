"""Metrics: the table of the code."""

from __future__ import annotations

import re

from skipring.observability.metrics import (
    METRICS,
    OF_ALL,
    OF_NODES,
    OF_SUPERVISORS,
    MetricKind,
)


def test_metric_names_state_kind_and_unit() -> None:
    for metric in METRICS.values():
        assert re.fullmatch(r"skipring_[a-z_]+", metric.name)
        assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total")
        assert metric.meaning.endswith(".")
    assert len(METRICS) == len(OF_ALL) + len(OF_NODES) + len(OF_SUPERVISORS)
