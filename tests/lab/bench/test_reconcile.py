"""Rows of ``skipring bench reconcile`` with small tries."""

from typing import Any

import pytest

from skipring.lab.bench.reconcile import measure

SIZES = (40, 3000)
DIFFERENCES = (0, 1, 10, 100, 1000)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(measure(SIZES, DIFFERENCES, seed=1))


def test_each_measurement_is_a_row(rows: list[dict[str, Any]]) -> None:
    assert [(row["n"], row["d"]) for row in rows] == [
        (n, d) for n, differences in ((40, (0, 1, 10)), (3000, DIFFERENCES)) for d in differences
    ]


def test_tries_are_equal_after_reconciliation(rows: list[dict[str, Any]]) -> None:
    assert all(row["equal"] for row in rows)


def test_comparison_of_equal_tries_takes_one_small_message(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["d"] == 0:
            assert (row["sessions"], row["messages"], row["hops"]) == (1, 1, 1)
            assert row["wire_bytes_max"] <= 64


def test_reconciliation_takes_few_hops_and_messages(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["hops"] <= 8 * row["sessions"]
        assert row["messages"] <= 2 * row["hops"]
