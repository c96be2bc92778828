"""Rows of a topic with a policy, and the rule ``keep``: which of them the policy retains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from skipring.core.batches import BatchRecord, RecordBatch, is_reserved
from skipring.core.publications import DELETED, Revision
from skipring.core.retention.charter import CharterRow, Policy, charter_of, is_false, rank
from skipring.core.retention.floors import FloorStamps


class KeyWrite(NamedTuple):
    """Newest record of a key in one batch."""

    revision: Revision
    is_deleted: bool  # a tombstone


class Row(NamedTuple):
    """Properties of a batch that decide whether it is retained."""

    stamp: int  # the latest time of its records
    is_reserved: bool
    has_keyless: bool  # a record without a key is never superseded
    writes: dict[bytes, KeyWrite]

    @classmethod
    def of(cls, batch: RecordBatch, records: Sequence[BatchRecord]) -> Row:
        """Return the properties of a batch with decoded records; none if it is opaque."""
        writes: dict[bytes, KeyWrite] = {}
        has_keyless = not records
        reserved = is_reserved(records)
        for index, each in enumerate(records):
            if not each.key or reserved:
                has_keyless = True
                continue
            revision = Revision(each.time, batch.publisher, batch.first + index, batch.id)
            known = writes.get(each.key)
            if known is None or known.revision < revision:
                writes[each.key] = KeyWrite(revision, DELETED in each.headers)
        return cls(stamp_of(records), reserved, has_keyless, writes)


def stamp_of(records: Iterable[BatchRecord]) -> int:
    """Return the stamp of a batch: the latest time of its records; 0 if it has none."""
    return max([each.time for each in records], default=0)


def keep(
    batches: Iterable[RecordBatch],
    policy: Policy,
    floors: FloorStamps,
    final: CharterRow | None = None,
) -> list[RecordBatch]:
    """Return the batches that a policy with these floors retains, in their order.

    ``final`` is the highest charter that cannot be cancelled any more; lower ones are dropped.
    """
    rows = {batch.id: (batch, Row.of(batch, batch.records())) for batch in batches}
    kept = {
        key: (batch, row)
        for key, (batch, row) in rows.items()
        if (not _is_replaced(batch, final) if row.is_reserved else row.stamp >= floors.rows)
    }
    if policy.compact:
        kept = _compacted(kept, floors.tombstones)
    return [batch for batch, _ in kept.values()]


def _is_replaced(batch: RecordBatch, final: CharterRow | None) -> bool:
    record = batch.records()[0]
    charter = charter_of(record)
    if charter is None:
        return is_false(record)
    return final is not None and rank((charter, batch.id)) < rank(final)


def _compacted(
    rows: dict[bytes, tuple[RecordBatch, Row]], floor: int
) -> dict[bytes, tuple[RecordBatch, Row]]:
    """Drop rows whose records are all superseded, or tombstones below a floor.

    A tombstone stays while another row has an older record of its key (document 7).
    """
    newest: dict[bytes, Revision] = {}
    for _, row in rows.values():
        for key, write in row.writes.items():
            newest[key] = max(newest.get(key, write.revision), write.revision)
    while True:
        holders = Counter(key for _, row in rows.values() for key in row.writes)
        kept = {
            id_: (batch, row)
            for id_, (batch, row) in rows.items()
            if row.has_keyless
            or any(
                newest[key] == write.revision
                and not (write.is_deleted and write.revision.time < floor and holders[key] == 1)
                for key, write in row.writes.items()
            )
        }
        if len(kept) == len(rows):
            return kept
        rows = kept
