"""Steps of a micro-batch: the tables after rows that were made by hand."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from shutil import copytree

import pytest
from pyspark.sql import SparkSession

from skipring.spark.pipeline.lake import Name, Writer
from skipring.spark.pipeline.microbatch import Figures, Steps
from skipring.spark.pipeline.runner import prepare
from skipring.spark.pipeline.silver import NOT_UTF8, PayloadFormat
from tests.spark.pipeline.lakes import NOON, delivery, gold, id_of, ids, publication, read, rows

pytestmark = pytest.mark.heavy

WINDOW_S = 60
MINUTE = timedelta(seconds=WINDOW_S)
BAD = b"\xff\xfe"
# Ann publishes 1 and 2 in the first minute, 3 in the second; Bob 4, which is bad; 5 has no time.
PUBLICATIONS = [
    publication(1, b'{"n": 1}', at_s=10),
    publication(2, b"two", at_s=50),
    publication(3, b"[3]", at_s=65),
    publication(4, BAD, publisher="bob", at_s=30),
    publication(5, None, at_s=None),
]
DELIVERIES = [
    delivery(1, "n1", at_s=10, hops=0, origin="own"),
    delivery(1, "n2", at_s=10.01, hops=1),
    delivery(1, "n3", at_s=10.02, hops=2),
    delivery(1, "n3", at_s=99, hops=0, origin="repair"),  # reported again after a lost disk
    delivery(2, "n2", at_s=50.03, hops=1),
    delivery(2, "n3", at_s=54, hops=0, origin="repair"),
    delivery(9, "n3", at_s=5),  # of a publication that arrives later
]


def figures_of(figures: Figures) -> dict[str, int]:
    names = ("bronze", "deliveries", "silver", "rejected", "duplicates", "windows")
    return {name: getattr(figures, name) for name in names}


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake after one micro-batch, which no test changes."""
    prepare(spark)
    lake = tmp_path_factory.mktemp("lake")
    figures = Steps(lake, PayloadFormat.AUTO, WINDOW_S).take(
        rows(spark, PUBLICATIONS, DELIVERIES), 0
    )
    assert figures_of(figures) == {
        "bronze": 5,
        "deliveries": 7,
        "silver": 4,
        "rejected": 1,
        "duplicates": 0,
        "windows": 3,
    }
    return lake


# -- the tables --------------------------------------------------------------------------------


def test_bronze_has_unchanged_publications(lake: Path) -> None:
    assert ids(lake, Name.BRONZE) == sorted(map(id_of, range(1, 6)))
    (row,) = (row for row in read(lake, Name.BRONZE) if row["sequence"] == 4)
    assert row["value"] == BAD
    assert row["headers"] == [("source", b"test")]


def test_silver_has_decoded_publications(lake: Path) -> None:
    found = {row["sequence"]: row for row in read(lake, Name.SILVER)}
    assert {number: row["kind"] for number, row in found.items()} == {
        1: "json",
        2: "text",
        3: "json",
        5: "none",
    }
    assert found[1]["value_text"] == '{"n": 1}'
    assert found[1]["value_bytes"] == 8
    assert found[1]["key_text"] == "k1"
    assert found[1]["headers"] == [("source", "test")]
    assert found[5]["value_text"] is None


def test_invalid_publication_is_only_in_rejected_with_the_reason(lake: Path) -> None:
    (row,) = read(lake, Name.REJECTED)
    assert (row["id"], row["value"], row["reason"]) == (id_of(4), BAD, NOT_UTF8)
    assert id_of(4) not in ids(lake, Name.SILVER)


def test_gold_has_the_figures_computed_by_hand(lake: Path) -> None:
    found = gold(lake)
    assert set(found) == {("ann", NOON), ("ann", NOON + MINUTE), ("bob", NOON), ("ann", None)}
    # Latencies of 1 and 2 at n2 and n3: 10, 20, 30 and 4000 ms.
    expected = {
        "topic": "orders",
        "window_end": NOON + MINUTE,
        "publications": 2,
        "rejected": 0,
        "value_bytes": 11,
        "publications_per_s": 2 / 60,
        "bytes_per_s": 11 / 60,
        "deliveries": 4,
        "nodes": 2,
        "latency_p50_ms": 25,
        "latency_p95_ms": 30 + 0.85 * 3970,
        "latency_p99_ms": 30 + 0.97 * 3970,
        "latency_max_ms": 4000,
        "hops_mean": 4 / 3,
        "hops_max": 2,
        "spread_share": 0.75,
        "repair_share": 0.25,
    }
    first = found["ann", NOON]
    assert {name: first[name] for name in expected} == {
        name: pytest.approx(value) if isinstance(value, int | float) else value
        for name, value in expected.items()
    }


def test_gold_counts_rejected_publications_and_those_without_a_time(lake: Path) -> None:
    found = gold(lake)
    bob, timeless = found["bob", NOON], found["ann", None]
    assert (bob["publications"], bob["rejected"], bob["value_bytes"]) == (1, 1, 2)
    assert (bob["deliveries"], bob["latency_p50_ms"], bob["spread_share"]) == (0, None, None)
    assert (timeless["publications"], timeless["publications_per_s"]) == (1, None)
    assert sum(row["publications"] for row in found.values()) == len(PUBLICATIONS)


# -- later batches ----------------------------------------------------------------------------


def test_duplicate_and_late_rows_change_only_their_own_windows(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    copytree(lake, tmp_path, dirs_exist_ok=True)
    before = gold(tmp_path)
    steps = Steps(tmp_path, PayloadFormat.AUTO, WINDOW_S)
    new = publication(9, b"late", at_s=4)
    again = [PUBLICATIONS[0], PUBLICATIONS[3], PUBLICATIONS[4], new, new]
    figures = steps.take(rows(spark, again), 1)
    assert (figures.silver, figures.rejected, figures.duplicates) == (1, 0, 4)
    assert len(read(tmp_path, Name.BRONZE)) == 10  # unchanged
    assert ids(tmp_path, Name.SILVER) == sorted(map(id_of, (1, 2, 3, 5, 9)))
    assert ids(tmp_path, Name.REJECTED) == [id_of(4)]
    found = gold(tmp_path)
    first = found["ann", NOON]
    assert (first["publications"], first["deliveries"]) == (3, 5)  # its delivery arrived first
    figures = steps.take(rows(spark, [], [delivery(3, "n2", at_s=165, origin="repair")]), 2)
    assert figures.windows == 1
    late = gold(tmp_path)["ann", NOON + MINUTE]
    assert (late["deliveries"], late["latency_p50_ms"], late["repair_share"]) == (1, 100_000, 1)
    unchanged = ("bob", NOON)
    assert gold(tmp_path)[unchanged] == found[unchanged] == before[unchanged]


# -- killed ------------------------------------------------------------------------------------


class Killed(BaseException):
    """Simulated kill, which no handler catches."""


def contents(lake: Path) -> dict[Name, list[str]]:
    return {name: sorted(map(repr, read(lake, name))) for name in Name}


def test_batch_killed_after_any_of_its_writes_runs_again_with_the_same_outcome(
    spark: SparkSession, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = rows(spark, PUBLICATIONS, DELIVERIES)
    rename = Path.rename
    survived: list[dict[Name, list[str]]] = []
    for kill_at in range(1, 6):  # one table further each time
        placed = 0

        def killed(part: Path, target: Path, kill_at: int = kill_at) -> Path:
            nonlocal placed
            placed += target.parent in [tmp_path / name for name in Name]
            if placed == kill_at:
                raise Killed
            return rename(part, target)

        monkeypatch.setattr(Path, "rename", killed)
        with pytest.raises(Killed):
            Steps(tmp_path, PayloadFormat.AUTO, WINDOW_S).take(batch, 0)
        monkeypatch.setattr(Path, "rename", rename)
        survived.append(contents(tmp_path))
        Writer(tmp_path).recover()
    Steps(tmp_path, PayloadFormat.AUTO, WINDOW_S).take(batch, 0)
    assert contents(tmp_path) == contents(lake)
    assert not any(survived[0].values())  # killed before the first part was placed


def test_batch_that_is_empty_when_it_runs_again_leaves_nothing(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    copytree(lake, tmp_path, dirs_exist_ok=True)
    figures = Steps(tmp_path, PayloadFormat.AUTO, WINDOW_S).take(rows(spark, []), 0)
    assert (figures.bronze, figures.silver, figures.rejected) == (0, 0, 0)
    for name in (Name.BRONZE, Name.SILVER, Name.REJECTED):
        assert read(tmp_path, name) == []


def test_batches_that_spark_has_not_committed_are_removed(tmp_path: Path) -> None:
    parts = {number: tmp_path / Name.SILVER / f"batch={number}" for number in (3, 4, 10)}
    for part in parts.values():
        part.mkdir(parents=True)
    Writer(tmp_path).forget_after(3)
    assert [number for number, part in parts.items() if part.exists()] == [3]
