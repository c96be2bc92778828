"""Rows of ``skipring bench index``; speeds depend on the machine."""

from typing import Any

import pytest

from skipring.lab.bench import index
from skipring.lab.bench.index import measure

N = 2500


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(measure(N, seed=1))


def test_each_measurement_is_a_row(rows: list[dict[str, Any]]) -> None:
    assert [(row["job"], row["n"]) for row in rows] == [
        (job, N) for job in ("memory", "inserts", "inserts", "fresh root", "stall")
    ]


def test_root_after_an_insert_is_timed(rows: list[dict[str, Any]]) -> None:
    (root,) = (row for row in rows if row["job"] == "fresh root")
    assert 0 < root["fresh_root_us"] <= root["fresh_root_us_p99"]


def test_ids_follow_from_the_seed_and_each_has_its_offset() -> None:
    one, again, other = (list(index.id_batches(25, 10, seed)) for seed in (1, 1, 2))
    assert one == again != other
    assert [len(batch) for batch in one] == [10, 10, 5]
    assert [offset for batch in one for _, offset in batch] == list(range(25))
