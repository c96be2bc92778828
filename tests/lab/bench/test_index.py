"""Rows of ``skipring bench index``; speeds depend on the machine."""

import platform
from typing import Any

import pytest

from skipring.lab.bench import index
from skipring.lab.bench.index import measure
from skipring.lab.bench.report import at_least, at_most

N = 2500


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(measure(N, seed=1))


def test_each_measurement_is_a_row_and_the_ratios_are_last(rows: list[dict[str, Any]]) -> None:
    *measured, last = rows
    assert [(row["job"], row["system"], row["n"]) for row in measured] == [
        ("memory", "skipring", N),
        ("memory", "reference", N),
        ("inserts", "skipring", N),
        ("inserts", "reference", N),
        ("inserts", "skipring", N),
        ("fresh root", "skipring", N),
        ("fresh root", "reference", N),
        ("stall", "skipring", N),
        ("roots", "skipring", N),
    ]
    assert list(last) == ["ratios"]


def test_both_tries_have_the_same_roots(rows: list[dict[str, Any]]) -> None:
    assert all(row["equal"] for row in rows if row.get("job") == "fresh root")
    (roots,) = (row for row in rows if row.get("job") == "roots")
    assert roots["roots_equal"] == roots["roots_compared"] == 3


def test_inserts_are_measured_several_times_in_two_sizes(rows: list[dict[str, Any]]) -> None:
    inserts = [row for row in rows if row.get("job") == "inserts"]
    assert [row["batch"] for row in inserts] == [1000, 1000, 100]
    for row in inserts:
        assert row["repeats"] == index.REPEATS
        assert 0 < row["inserts_per_s_min"] <= row["inserts_per_s"] <= row["inserts_per_s_max"]
        assert row["inserts_per_s_last_tenth"] > 0
        assert row["python"] == platform.python_version()


def test_stall_is_the_longest_of_all_calls(rows: list[dict[str, Any]]) -> None:
    (stall,) = (row for row in rows if row.get("job") == "stall")
    kinds = [stall[name] for name in ("insert_ms", "freshen_ms", "scrub_ms")]
    assert min(kinds) > 0
    assert stall["stall_ms"] == max(kinds)


def test_ratios_compare_with_goals_and_with_the_reference(rows: list[dict[str, Any]]) -> None:
    memory, plain_memory, inserts, plain_inserts, _, root, plain_root, stall, _, last = rows
    speed, plain_speed = inserts["inserts_per_s"], plain_inserts["inserts_per_s"]
    expected = {
        **at_least("inserts_per_s", speed, index.INSERTS_PER_S),
        **at_most("stall_ms", stall["stall_ms"], index.STALL_MS),
        "inserts_per_s_skipring_over_reference": speed / plain_speed,
    }
    for own, plain, name, goal in (
        (memory, plain_memory, "bytes_per_publication", index.BYTES_PER_PUBLICATION),
        (memory, plain_memory, "bytes_per_publication_hashed", index.BYTES_PER_PUBLICATION),
        (root, plain_root, "fresh_root_us", index.FRESH_ROOT_US),
    ):
        expected |= at_most(name, own[name], goal)
        ratio = plain[name] / own[name] if own[name] else None  # memory may not grow
        expected[f"{name}_reference_over_skipring"] = ratio
    assert last["ratios"] == pytest.approx(expected, abs=0.01)


def test_ids_follow_from_the_seed_and_each_has_its_offset() -> None:
    one, again, other = (list(index.id_batches(25, 10, seed)) for seed in (1, 1, 2))
    assert one == again != other
    assert [len(batch) for batch in one] == [10, 10, 5]
    assert [offset for batch in one for _, offset in batch] == list(range(25))
