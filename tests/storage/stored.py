"""Stores with known publications, their damage, and the records that remain."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from skipring.core.publications import Publication
from skipring.storage.durable_mark import losses_of
from skipring.storage.store import PublicationStore

NEWS, CHAT = "news", "chat"
DATABASE = "publications.sqlite3"
PROMISES = ("publications.promise-a", "publications.promise-b")


def publication(seq: int, topic: str = NEWS, size: int = 40) -> Publication:
    """Return a unique publication."""
    payload = (f"{topic} {seq} ".encode() * size)[:size]
    return Publication(
        publisher=f"node{seq % 3}", seq=seq, payload=payload, time=seq, headers={"n": str(seq)}
    ).with_id(topic)


def write(store: PublicationStore, *counts: int, topic: str = NEWS, size: int = 40) -> None:
    """Write and commit publications, once for each count."""
    archive = store.archive(topic)
    for count in counts:
        for offset in range(archive.end, archive.end + count):
            archive.write(offset, publication(offset, topic, size))
        store.commit()


def made(directory: Path, *counts: int, topic: str = NEWS, size: int = 40) -> Path:
    """Return the directory of a store that was closed properly."""
    with PublicationStore.open(directory) as store:
        write(store, *counts, topic=topic, size=size)
    return directory


def crashed(directory: Path, *counts: int, topic: str = NEWS, size: int = 40) -> Path:
    """Return the directory of a store after a crash, with its write-ahead log."""
    living = directory.with_name(directory.name + "-living")
    with PublicationStore.open(living) as store:
        write(store, *counts, topic=topic, size=size)
        shutil.copytree(living, directory)
    shutil.rmtree(living)
    assert (directory / f"{DATABASE}-wal").stat().st_size > 0
    return directory


def flip(path: Path, place: int, bits: int = 1) -> None:
    """Flip bits of one byte."""
    data = bytearray(path.read_bytes())
    data[place] ^= bits
    path.write_bytes(data)


def offsets(store: PublicationStore, topic: str = NEWS) -> list[int]:
    """Return the readable offsets; assert that all ways of reading agree and invent nothing."""
    archive = store.archive(topic)
    found = dict(archive.read_range(0, archive.end))
    assert list(found) == sorted(found)
    for offset in range(archive.end):
        assert archive.read(offset) == found.get(offset)
    assert list(archive.entries()) == [(found[offset].id, offset) for offset in found]
    assert list(archive.publications()) == list(found.values())
    for offset, stored in found.items():
        assert stored == publication(offset, topic, len(stored.payload or b""))
    return list(found)


def losses(store: PublicationStore, topic: str = NEWS) -> int:
    """Return the number of recoveries that ended below the durable mark of a topic."""
    return losses_of(store.archive(topic).epoch)


def state(directory: Path) -> tuple[list[int], int]:
    """Open a store; return its readable offsets and the losses of its topic."""
    with PublicationStore.open(directory) as store:
        return offsets(store), losses(store)


def change(directory: Path, *statements: str) -> None:
    """Run SQL statements on the file of a store that is closed."""
    with closing(sqlite3.connect(directory / DATABASE, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def query(directory: Path, statement: str, file: str = DATABASE) -> list[tuple[Any, ...]]:
    """Return the rows of a query on a file of a store."""
    with closing(sqlite3.connect(directory / file)) as db:
        return db.execute(statement).fetchall()


def damaged(directory: Path) -> list[str]:
    """Return the names of the quarantined files."""
    return sorted(path.name for path in directory.glob("*.damaged-*"))


def places(path: Path, count: int) -> Iterator[int]:
    """Yield about ``count`` evenly spaced positions of a file."""
    size = path.stat().st_size
    yield from range(0, size, max(1, size // count))
