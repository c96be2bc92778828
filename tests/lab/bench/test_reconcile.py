"""Rows of ``skipring bench reconcile`` with small tries."""

from typing import Any

import pytest

from skipring.lab.bench import reconcile
from skipring.lab.bench.reconcile import BATCHED, UNBATCHED, measure
from skipring.lab.bench.report import at_most

SIZES = (40, 3000)
DIFFERENCES = (0, 1, 10, 100, 1000)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(measure(SIZES, DIFFERENCES, seed=1))


@pytest.fixture(scope="module")
def measured(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return rows[:-1]


def test_each_measurement_is_a_row_and_the_ratios_are_last(rows: list[dict[str, Any]]) -> None:
    *measured, last = rows
    expected = []
    for n, differences in ((40, (0, 1, 10)), (3000, DIFFERENCES)):
        for d in differences:
            systems = (BATCHED, UNBATCHED) if d <= 100 else (BATCHED,)
            expected += [("reconcile", system, n, d) for system in systems]
    assert [
        tuple(row[name] for name in ("job", "system", "n", "d")) for row in measured
    ] == expected
    assert list(last) == ["ratios"]


def test_tries_are_equal_after_reconciliation(measured: list[dict[str, Any]]) -> None:
    assert all(row["equal"] for row in measured)


def test_differences_are_sent_once(measured: list[dict[str, Any]]) -> None:
    for row in measured:
        assert row["publications"] == row["d"] + row["duplicates"]
        assert row["duplicates"] == 0
        assert (row["publication_bytes"] > 0) is (row["d"] > 0)


def test_comparison_of_equal_tries_takes_one_small_message(measured: list[dict[str, Any]]) -> None:
    for row in measured:
        if row["d"] == 0:
            assert (row["sessions"], row["messages"], row["hops"]) == (1, 1, 1)
            assert row["wire_bytes_max"] <= reconcile.EQUAL_BYTES


def test_batched_reconciliation_takes_few_hops_and_messages(measured: list[dict[str, Any]]) -> None:
    for row in measured:
        if row["system"] == BATCHED:
            assert row["hops"] <= reconcile.HOPS * row["sessions"]
            assert row["messages"] <= 2 * row["hops"]


def test_unbatched_reconciliation_takes_more_messages(measured: list[dict[str, Any]]) -> None:
    by_system = {
        system: {(row["n"], row["d"]): row for row in measured if row["system"] == system}
        for system in (BATCHED, UNBATCHED)
    }
    for key, row in by_system[UNBATCHED].items():
        assert row["messages"] >= by_system[BATCHED][key]["messages"]


def test_bytes_grow_with_the_number_of_differences(measured: list[dict[str, Any]]) -> None:
    large = [row for row in measured if row["system"] == BATCHED and row["n"] == 3000]
    sizes = [row["wire_bytes"] for row in large]
    assert sizes == sorted(sizes)
    for row in large:
        assert row["wire_bytes_min"] <= row["wire_bytes"] <= row["wire_bytes_max"]


def test_ratios_compare_the_largest_tries_with_their_goals(rows: list[dict[str, Any]]) -> None:
    *measured, last = rows
    equal, *_, most = (row for row in measured if row["system"] == BATCHED and row["n"] == 3000)
    (alone,) = (
        row["messages"]
        for row in measured
        if (row["system"], row["n"], row["d"]) == (UNBATCHED, 3000, 100)
    )
    (together,) = (
        row["messages"]
        for row in measured
        if (row["system"], row["n"], row["d"]) == (BATCHED, 3000, 100)
    )
    size = most["wire_bytes"]
    assert last["ratios"] == pytest.approx(
        {
            **at_most("equal_bytes", equal["wire_bytes"], reconcile.EQUAL_BYTES),
            **at_most("bytes_at_1000", size, reconcile.BYTES),
            **at_most("hops_at_1000", most["hops"], reconcile.HOPS),
            "bytes_at_1000_negentropy_over_skipring": reconcile.NEGENTROPY_BYTES / size,
            "messages_unbatched_over_skipring": alone / together,
        },
        abs=0.01,
    )


def test_counts_depend_on_the_seed_alone(rows: list[dict[str, Any]]) -> None:
    def counted(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if not name.startswith("cpu_ms")}

    again = list(measure(SIZES[:1], DIFFERENCES, seed=1))
    assert [counted(row) for row in again[:-1]] == [counted(row) for row in rows[: len(again) - 1]]
