"""The steps of a micro-batch on rows made by hand: in which tables they are."""

from __future__ import annotations

import fcntl
from datetime import timedelta
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from skipring.errors import StoreBusyError
from skipring.spark.pipeline import runner as running
from skipring.spark.pipeline.lake import Name, Writer
from skipring.spark.pipeline.microbatch import Figures, Steps, publications
from skipring.spark.pipeline.runner import prepare
from skipring.spark.pipeline.silver import (
    NOT_JSON,
    NOT_UTF8,
    PayloadFormat,
    accepted,
    decoded,
    rejected,
)
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
    delivery(1, "n3", at_s=99, hops=0, origin="repair"),  # told again after a lost disk
    delivery(2, "n2", at_s=50.03, hops=1),
    delivery(2, "n3", at_s=54, hops=0, origin="repair"),
    delivery(9, "n3", at_s=5),  # of a publication that has not come yet
]


def figures_of(figures: Figures) -> dict[str, int]:
    names = ("bronze", "deliveries", "silver", "rejected", "duplicates", "windows")
    return {name: getattr(figures, name) for name in names}


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake after one micro-batch, which no test changes."""
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


def test_bronze_has_publications_as_they_are(lake: Path) -> None:
    assert ids(lake, Name.BRONZE) == sorted(map(id_of, range(1, 6)))
    (row,) = (row for row in read(lake, Name.BRONZE) if row["sequence"] == 4)
    assert row["value"] == BAD
    assert row["headers"] == [("source", b"test")]


def test_silver_has_them_decoded(lake: Path) -> None:
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


def test_what_is_bad_is_in_rejected_with_the_reason_and_in_no_other_place(lake: Path) -> None:
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
        name: value if isinstance(value, str) else pytest.approx(value) if isinstance(
            value, (int, float)) else value
        for name, value in expected.items()
    }  # fmt: skip


def test_gold_counts_what_was_rejected_and_what_has_no_time(lake: Path) -> None:
    found = gold(lake)
    bob, timeless = found["bob", NOON], found["ann", None]
    assert (bob["publications"], bob["rejected"], bob["value_bytes"]) == (1, 1, 2)
    assert (bob["deliveries"], bob["latency_p50_ms"], bob["spread_share"]) == (0, None, None)
    assert (timeless["publications"], timeless["publications_per_s"]) == (1, None)
    assert sum(row["publications"] for row in found.values()) == len(PUBLICATIONS)


# -- what comes later --------------------------------------------------------------------------


def test_duplicates_and_late_news_change_only_what_they_should(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    copytree(lake, tmp_path, dirs_exist_ok=True)
    before = gold(tmp_path)
    steps = Steps(tmp_path, PayloadFormat.AUTO, WINDOW_S)
    new = publication(9, b"late", at_s=4)
    again = [PUBLICATIONS[0], PUBLICATIONS[3], PUBLICATIONS[4], new, new]
    figures = steps.take(rows(spark, again), 1)
    assert (figures.silver, figures.rejected, figures.duplicates) == (1, 0, 4)
    assert len(read(tmp_path, Name.BRONZE)) == 10  # as they came
    assert ids(tmp_path, Name.SILVER) == sorted(map(id_of, (1, 2, 3, 5, 9)))
    assert ids(tmp_path, Name.REJECTED) == [id_of(4)]
    found = gold(tmp_path)
    first = found["ann", NOON]
    assert (first["publications"], first["deliveries"]) == (3, 5)  # its delivery had come before it
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


def test_a_batch_killed_after_any_of_its_writes_is_done_again_with_the_same_outcome(
    spark: SparkSession, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = rows(spark, PUBLICATIONS, DELIVERIES)
    place = Writer._place
    survived: list[dict[Name, list[str]]] = []
    for kill_at in range(1, 6):  # each time one table further
        calls = 0

        def killed(writer: Writer, kill_at: int = kill_at) -> None:
            nonlocal calls
            calls += any(writer._ready.glob("*/*"))
            if calls == kill_at:
                raise Killed
            place(writer)

        monkeypatch.setattr(Writer, "_place", killed)
        with pytest.raises(Killed):
            Steps(tmp_path, PayloadFormat.AUTO, WINDOW_S).take(batch, 0)
        survived.append(contents(tmp_path))
        monkeypatch.setattr(Writer, "_place", place)
        Writer(tmp_path).recover()
    Steps(tmp_path, PayloadFormat.AUTO, WINDOW_S).take(batch, 0)
    assert contents(tmp_path) == contents(lake)
    assert not any(survived[0].values())  # killed before anything was in its place


def test_a_batch_that_has_nothing_when_it_is_done_again_leaves_nothing(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    copytree(lake, tmp_path, dirs_exist_ok=True)
    figures = Steps(tmp_path, PayloadFormat.AUTO, WINDOW_S).take(rows(spark, []), 0)
    assert (figures.bronze, figures.silver, figures.rejected) == (0, 0, 0)
    for name in (Name.BRONZE, Name.SILVER, Name.REJECTED):
        assert read(tmp_path, name) == []


def test_what_spark_does_not_know_of_is_forgotten(tmp_path: Path) -> None:
    parts = {number: tmp_path / Name.SILVER / f"batch={number}" for number in (3, 4, 10)}
    for part in parts.values():
        part.mkdir(parents=True)
    Writer(tmp_path).forget_after(3)
    assert [number for number, part in parts.items() if part.exists()] == [3]


def test_a_lake_that_another_process_writes_to_is_left_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LOCK_WAIT_S", 0.1)
    with running.locked(spark, tmp_path):
        pass
    with (tmp_path / running.LOCK).open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # as the JVM of another run would
        with pytest.raises(StoreBusyError, match="another pipeline"):
            running.locked(spark, tmp_path).__enter__()
    with running.locked(spark, tmp_path):
        pass


# -- formats -----------------------------------------------------------------------------------

VALUES: list[bytes | None] = [
    b'{"a": 1}',
    b" [1, 2]\n",
    b"42",
    b"text",
    b'{"a": 1} {"b": 2}',
    b"1], [2",
    b'1, "b": 2',
    b'{"a": 1, "a": 2}',
    b"",
    BAD,
    None,
]
JSON = {b'{"a": 1}', b" [1, 2]\n", b"42"}


@pytest.fixture(scope="module")
def values(spark: SparkSession) -> DataFrame:
    made = [publication(number, value) for number, value in enumerate(VALUES)]
    return publications(rows(spark, made)).cache()


def kinds(values: DataFrame, chosen: PayloadFormat) -> tuple[dict[Any, str], dict[Any, str]]:
    found = decoded(values, chosen)
    good = {VALUES[row.sequence]: row.kind for row in accepted(found).collect()}
    bad = {VALUES[row.sequence]: row.reason for row in rejected(found).collect()}
    assert {*good, *bad} == set(VALUES)
    assert not good.keys() & bad.keys()
    return good, bad


def test_auto_takes_every_text_and_knows_json_documents(values: DataFrame) -> None:
    good, bad = kinds(values, PayloadFormat.AUTO)
    assert bad == {BAD: NOT_UTF8}
    assert {value for value, kind in good.items() if kind == "json"} == JSON - {b"42"}
    assert good[None] == "none"


def test_json_takes_one_whole_json_value_and_nothing_else(values: DataFrame) -> None:
    good, bad = kinds(values, PayloadFormat.JSON)
    assert good == {**dict.fromkeys(JSON, "json"), None: "none"}
    assert bad == {
        value: NOT_UTF8 if value == BAD else NOT_JSON for value in set(VALUES) - {*JSON, None}
    }


def test_text_does_not_look_for_json(values: DataFrame) -> None:
    good, bad = kinds(values, PayloadFormat.TEXT)
    assert bad == {BAD: NOT_UTF8}
    assert set(good.values()) == {"text", "none"}


def test_binary_takes_everything_as_it_is(values: DataFrame) -> None:
    good, bad = kinds(values, PayloadFormat.BINARY)
    assert bad == {}
    assert set(good.values()) == {"binary", "none"}
    kept = accepted(decoded(values, PayloadFormat.BINARY)).where("kind = 'binary'").collect()
    assert {bytes(row.value) for row in kept} == {value for value in VALUES if value is not None}
