"""Stores of nodes that do not run yet, full of publications."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Final

from skipring.core.publications import Publication
from skipring.lab.bench.peers.run import TOPIC
from skipring.lab.bench.tally import payload_at
from skipring.storage.store import PublicationStore

WRITTEN_AT_ONCE: Final = 1000
_FIRST_TIME: Final = 1_700_000_000_000_000


def fill_store(directory: Path, count: int, size: int) -> None:
    """Put so many publications into a data directory: the same ones into each."""
    with PublicationStore.open(directory) as store:
        archive = store.archive(TOPIC)
        numbers = iter(range(count))
        while some := list(islice(numbers, WRITTEN_AT_ONCE)):
            archive.write(some[0], *(_publication(number, size) for number in some))
        store.commit()


def _publication(number: int, size: int) -> Publication:
    payload, time = payload_at(number, size), _FIRST_TIME + number
    return Publication(publisher="bench", seq=number, payload=payload, time=time).with_id(TOPIC)
