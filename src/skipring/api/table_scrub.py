"""Scrub of a key-value table: comparison with what its topic retains, in slices (decision 0060)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from skipring.api.key_value_table import Change, KeyValueTable, text_of_key
from skipring.api.reader import DeliveredPublication, stored_publications
from skipring.core.batches import RECORDS_MAX
from skipring.core.log import Log
from skipring.core.retention.member import Retention
from skipring.core.retention.retained import RetainedRows

KEYS_AT_ONCE: Final = 4096  # Measured: one step takes 4 ms.


class TableScrub:
    """Comparison of a table with the index of keys of its topic, after the log has lost records.

    Retention removes records by age, number and size, and a quarantine hides and returns them.
    Without this comparison, a table would keep values that no newcomer has.
    """

    def __init__(self, table: KeyValueTable) -> None:
        self._table = table
        self._left: Iterator[str] | None = None  # keys to compare
        self._is_of_index = False  # the keys are those of the index
        self._counts: tuple[int, ...] = ()  # of the log and the index, when a change was seen
        self._due: int | None = None  # compare once the table has read up to this offset

    def step(self, retention: Retention, log: Log, offset: int, now: int) -> list[Change[bytes]]:
        """Compare the next keys; return the changes of the table.

        The table has read the log up to ``offset``.
        """
        rows = retention.rows
        if rows is None or not rows.policy.compact or not rows.is_complete:
            return []
        counts = log.end - log.records, len(retention.quarantine), rows.keys
        if self._due is None and counts != self._counts:
            self._counts, self._due = counts, log.end
        if self._left is None:
            if self._due is None or offset < self._due:
                return []
            self._left, self._is_of_index, self._due = iter(self._table.known_keys()), False, None
        keys = list(islice(self._left, KEYS_AT_ONCE))
        changes = [self._compare(key, rows, log, offset, now) for key in keys]
        if len(keys) < KEYS_AT_ONCE:
            is_complete = self._is_of_index or self._table.known_count >= rows.keys
            self._left = None if is_complete else map(text_of_key, rows.known_keys())
            self._is_of_index = not is_complete
        return [each for each in changes if each is not None]

    def _compare(
        self, key: str, rows: RetainedRows, log: Log, offset: int, now: int
    ) -> Change[bytes] | None:
        """Give a key the value that the topic retains; return the change."""
        table = self._table
        newest = rows.newest(key.encode(errors="surrogateescape"))
        if newest is None:
            return table.forget(key)
        known, at = table.revision(key), newest[3]
        is_equal = known is not None and (known.time, known.publisher, known.seq) == newest[:3]
        if is_equal or at >= offset or (write := _stored(log, at, newest[2])) is None:
            return None
        forgotten, written = table.forget(key), table.apply(write, now)
        if forgotten is None or written is None:
            return forgotten or written
        return Change(key, written.entry, forgotten.before)


def _stored(log: Log, offset: int, number: int) -> DeliveredPublication | None:
    """Return the record with a number of the batch at an offset; None if it cannot be read."""
    batches = stored_publications(log, range(offset, offset + RECORDS_MAX))
    _, publications = next(batches, (None, []))
    return next((each for each in publications if each.seq == number), None)
