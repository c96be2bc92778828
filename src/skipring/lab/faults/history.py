"""Long history, written into the data directory of a node that does not run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from skipring.core.publications import Publication
from skipring.lab.faults.requests import TOPIC
from skipring.storage.store import PublicationStore

HOLDER: Final = "a"
COMMITTED_AT_ONCE: Final = 5_000


def fill_history(directory: Path, count: int, size: int = 64) -> list[bytes]:
    """Write a history; return its payloads."""
    payloads = [f"history.{number}".encode().ljust(size, b".") for number in range(count)]
    with PublicationStore.open(directory) as store:
        archive = store.archive(TOPIC)
        for offset, payload in enumerate(payloads):
            made = Publication(
                publisher=f"node{offset % 5}", seq=offset, payload=payload, time=1 + offset
            )
            archive.write(offset, made.with_id(TOPIC))
            if archive.unwritten == COMMITTED_AT_ONCE:
                store.commit()
        store.commit()
    return payloads


def written_bytes(directory: Path) -> int:
    """Return the size of the files of a store."""
    return sum(path.stat().st_size for path in directory.glob("publications.*"))
