"""Stores with known publications, and what is left of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from skipring.core.publications import Publication
from skipring.storage.store import PublicationStore

NEWS, CHAT = "news", "chat"
DATABASE = "publications.sqlite3"
PROMISES = ("publications.promise-a", "publications.promise-b")


def publication(seq: int, topic: str = NEWS, size: int = 40) -> Publication:
    """A publication that is like no other."""
    payload = (f"{topic} {seq} ".encode() * size)[:size]
    return Publication(
        publisher=f"node{seq % 3}", seq=seq, payload=payload, time=seq, headers={"n": str(seq)}
    ).with_id(topic)


def write(store: PublicationStore, *counts: int, topic: str = NEWS, size: int = 40) -> None:
    """Write some publications, commit, write some more, commit."""
    archive = store.archive(topic)
    for count in counts:
        for offset in range(archive.end, archive.end + count):
            archive.write(offset, publication(offset, topic, size))
        store.commit()


def made(directory: Path, *counts: int, topic: str = NEWS, size: int = 40) -> Path:
    """A store that was closed properly."""
    with PublicationStore.open(directory) as store:
        write(store, *counts, topic=topic, size=size)
    return directory


def crashed(directory: Path, *counts: int, topic: str = NEWS, size: int = 40) -> Path:
    """A store as it is found after a crash: its write-ahead log is still there."""
    living = directory.with_name(directory.name + "-living")
    with PublicationStore.open(living) as store:
        write(store, *counts, topic=topic, size=size)
        shutil.copytree(living, directory)
    shutil.rmtree(living)
    assert (directory / f"{DATABASE}-wal").stat().st_size > 0
    return directory


def flip(path: Path, place: int, bits: int = 1) -> None:
    """Change bits of one byte."""
    data = bytearray(path.read_bytes())
    data[place] ^= bits
    path.write_bytes(data)


def offsets(store: PublicationStore, topic: str = NEWS) -> list[int]:
    """What can be read; all ways of reading agree, and nothing is invented."""
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


def damaged(directory: Path) -> list[str]:
    """Names of what was put aside."""
    return sorted(path.name for path in directory.glob("*.damaged-*"))


def places(path: Path, count: int) -> Iterator[int]:
    """About so many places of a file, evenly."""
    size = path.stat().st_size
    yield from range(0, size, max(1, size // count))
