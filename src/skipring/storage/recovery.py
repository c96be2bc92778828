"""Opening a store that may be damaged in any way: what is intact is kept, nothing is invented.

A file in which anything is wrong is never mended in place. What is intact goes into a new file
beside it; when that is complete the old one is put aside and the new one takes its name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, structs

from skipring.core.peers import TopicId
from skipring.errors import StorageError
from skipring.storage.database import (
    FILE,
    Contents,
    DamageError,
    connect_durably,
    contents_of,
    transaction,
)
from skipring.storage.files import COMPLAINTS, beside, is_damage, put_aside, sync_directory
from skipring.storage.promises import Promises
from skipring.storage.rebuilding import COMPLETE, discard_incomplete, is_short, rebuild


class Recovery(Struct, frozen=True, kw_only=True):
    """What was found when a store was opened."""

    publications: int = 0  # how many there are
    lost: int = 0  # how many are known to have been there besides
    raised: tuple[TopicId, ...] = ()  # topics whose epoch is a new one
    damage: str | None = None
    aside: str | None = None  # the name of the damaged file now

    def __str__(self) -> str:
        words = [f"{self.publications} publications"]
        if self.damage is not None:
            words.append(f"the file was damaged: {self.damage}")
            words.append(f"{self.lost} lost here, to be fetched from other nodes")
        if self.aside is not None:
            words.append(f"the damaged file is kept as {self.aside}")
        if self.raised:
            words.append(f"offsets count anew for {', '.join(self.raised)}")
        return "; ".join(words)


class Opened(NamedTuple):
    """A store in which nothing is damaged any more."""

    db: sqlite3.Connection
    contents: Contents
    recovery: Recovery


def open_database(directory: Path, promises: Promises | None, new_id: Callable[[], str]) -> Opened:
    """Open the database of a directory, made anew if there is none or if it is damaged."""
    path = directory / FILE
    discard_incomplete(path)
    if beside(path, COMPLETE).exists():
        _take_over(path, None)
    log = beside(path, "-wal")
    wal = log.read_bytes() if log.exists() else b""  # SQLite removes it, all read or not
    damage = None
    if path.exists():
        try:
            return _open_sound(path, promises, Recovery())
        except DamageError as error:
            damage = str(error)
    elif promises is not None or wal:
        damage = "it is missing"
    lost, raised = rebuild(path, wal, promises, new_id)
    aside = _take_over(path, wal)
    recovery = Recovery(
        damage=damage, lost=lost, raised=raised, aside=aside.name if aside is not None else None
    )
    try:
        return _open_sound(path, None, recovery)
    except DamageError as error:
        raise StorageError(
            f"{path}: what was just written reads otherwise ({error}); replace the disk"
        ) from error


def _take_over(path: Path, wal: bytes | None) -> Path | None:
    """Give the new file its name; what had it before is put aside."""
    aside = put_aside(path, wal)
    beside(path, COMPLETE).replace(path)
    sync_directory(path.parent)
    return aside


def _open_sound(path: Path, promises: Promises | None, recovery: Recovery) -> Opened:
    """Open a database; DamageError if anything in it is wrong or missing."""
    db = None
    try:
        db = connect_durably(path)
        contents = contents_of(db)
        _check_promises(contents, promises)
        with transaction(db):
            db.execute("DELETE FROM quarantine WHERE 0")  # it can be written to: BEGIN does not ask
    except (*COMPLAINTS, DamageError) as error:
        if db is not None:
            db.close()
        if not isinstance(error, DamageError) and not is_damage(error, path):
            raise
        raise DamageError(str(error)) from error
    count = sum(places.count for places in contents.places.values())
    return Opened(db, contents, structs.replace(recovery, publications=count))


def _check_promises(contents: Contents, promises: Promises | None) -> None:
    said = {}
    if promises is not None and promises.store == contents.store:
        said = promises.topics
    for topic in sorted({*contents.promises, *said}):
        end = contents.places[topic].end if topic in contents.places else 0
        if is_short(end, contents.promises.get(topic), said.get(topic)):
            raise DamageError(f"topic {topic!r} ends at {end}, before what was promised")
