"""Rows of a topic with a policy: batches, strategies, and what ``keep`` retains of them."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.publications import DELETED
from skipring.core.retention.charter import Charter, Policy, charter_of, charter_record
from skipring.core.retention.floors import FloorStamps
from skipring.core.retention.rows import keep

KEYS = Policy(compact=True)
TOMB = {DELETED: "1"}


def record(time: int, key: bytes | None = None, *, deleted: bool = False) -> BatchRecord:
    return BatchRecord(b"" if deleted else b"v", time, key, TOMB if deleted else {})


def rows(*records: BatchRecord, first: int = 0, publisher: str = "a") -> RecordBatch:
    return RecordBatch.of(records, publisher=publisher, first=first, topic="t")


def put(time: int, key: bytes = b"k", *, deleted: bool = False, first: int = 0) -> RecordBatch:
    return rows(record(time, key, deleted=deleted), first=first)


times = st.integers(1, 12)
plain = st.builds(record, times, st.sampled_from([None, b"", b"k", b"l"]))
any_record = plain | st.builds(record, times, st.sampled_from([b"k", b"l"]), deleted=st.just(True))


def batches_of(records: st.SearchStrategy[BatchRecord]) -> st.SearchStrategy[RecordBatch]:
    """Return batches of one record mostly, under the numbers of two publishers."""
    several = st.lists(records, min_size=1, max_size=3)
    return st.builds(
        lambda some, first, name: rows(*some, first=first, publisher=name),
        several,
        st.integers(0, 3),
        st.sampled_from("ab"),
    )


def charters() -> st.SearchStrategy[RecordBatch]:
    return st.builds(lambda stamp: rows(charter_record(Charter(stamp=stamp))), times)


sets = st.lists(batches_of(plain) | charters(), max_size=8)
sets_with_deletions = st.lists(batches_of(any_record), max_size=10)
floors = st.builds(FloorStamps, st.integers(0, 12), st.integers(0, 4))
policies = st.builds(Policy, max_count=st.none() | st.integers(1, 9), compact=st.booleans())


def kept(found: Iterable[RecordBatch], policy: Policy, cut: FloorStamps) -> set[RecordBatch]:
    every = list({each.id: each for each in found}.values())
    acting = [(c, b.id) for b in every if (c := charter_of(b.records()[0])) is not None]
    return set(
        keep(every, policy, cut, max(acting, key=lambda r: (r[0].stamp, r[1]), default=None))
    )


# A compacted topic has batches of one record.
single = st.builds(
    lambda made, first, name: rows(made, first=first, publisher=name),
    any_record,
    st.integers(0, 99),
    st.sampled_from("ab"),
)
singles = st.lists(single, max_size=12)
