"""Where the newcomer of a peer keeps what it gets, if it has to: in a table, on its own disk.

A row for each message, found by what the peer calls it, as ours are by their ids.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from skipring.lab.bench.peers.run import Newcomer

FILE: Final = "shelf.sqlite3"
GROUP: Final = 5000  # messages of a transaction: as many as Redis is asked for at once
# All measured with 100,000 rows of 128 bytes, in processor time. Pages of 4 KiB take 0.14 s, from
# 16 KiB on it is 0.12; when the log is written back changes little of it.
PAGE_BYTES: Final = 32768
# One row a statement: 0.18 s, 20 rows: 0.15, 50: 0.13, from 100 on: 0.12.
ROWS_AT_ONCE: Final = 100
# A number is the cheapest key: text without rowids takes 0.03 s more, no key at all 0.01 more.
_TABLE: Final = "CREATE TABLE shelf(id INTEGER PRIMARY KEY, payload BLOB NOT NULL)"
_INSERT: Final = "INSERT INTO shelf VALUES(?, ?)"
_INSERT_MANY: Final = _INSERT + ", (?, ?)" * (ROWS_AT_ONCE - 1)


class Shelf:
    """A new table of messages; what was put there is on the disk."""

    def __init__(self, directory: Path) -> None:
        self._db = db = sqlite3.connect(directory / FILE, isolation_level=None)
        db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        db.execute("PRAGMA journal_mode=WAL").fetchall()
        db.execute("PRAGMA synchronous=FULL")
        db.execute(_TABLE)

    def put(self, ids: Sequence[int], payloads: Sequence[bytes]) -> None:
        """Add these in one transaction, and wait until they are on the disk."""
        values: list[int | bytes] = [0] * (2 * len(ids))
        values[::2], values[1::2] = ids, payloads
        many = 2 * ROWS_AT_ONCE
        rest = len(values) - len(values) % many
        self._db.execute("BEGIN")
        self._db.executemany(_INSERT_MANY, (values[at : at + many] for at in range(0, rest, many)))
        self._db.executemany(_INSERT, (values[at : at + 2] for at in range(rest, len(values), 2)))
        self._db.execute("COMMIT")

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._db.execute("SELECT count(*) FROM shelf").fetchone()[0])

    def close(self) -> None:
        """Put nothing more."""
        self._db.close()


class Keeper(Newcomer):
    """A newcomer with a shelf."""

    async def fetch(self) -> None:
        """Get all, and put it on a shelf: in the same thread, since another one costs more."""
        self.shelf = Shelf(self.run.directory)
        await super().fetch()

    async def leave(self) -> None:
        """What counts is what is on the shelf."""
        self.count = self.shelf.count
        self.shelf.close()
