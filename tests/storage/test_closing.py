"""Closing a store waits for a commit in another thread: SQLite would crash."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from skipring.core.publications import Publication
from skipring.storage import store as publications
from skipring.storage.store import PublicationStore

PATIENCE_S = 20.0
TOPIC = "news"


def test_closing_waits_for_a_commit_in_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = Event(), Event()
    transaction = publications.transaction

    @contextmanager
    def held(db: sqlite3.Connection) -> Iterator[None]:
        with transaction(db):
            begun.set()
            assert go_on.wait(PATIENCE_S)
            yield

    store = PublicationStore.open(tmp_path)
    store.archive(TOPIC).write(0, Publication(publisher="p", seq=0, payload=b"x").with_id(TOPIC))
    monkeypatch.setattr(publications, "transaction", held)
    committing = Thread(target=store.commit)
    closing = Thread(target=store.close)
    committing.start()
    assert begun.wait(PATIENCE_S)
    closing.start()
    closing.join(0.2)  # long enough for a close that does not wait
    is_closed_early = not closing.is_alive()
    go_on.set()
    committing.join(PATIENCE_S)
    closing.join(PATIENCE_S)
    assert not is_closed_early
    monkeypatch.undo()
    with PublicationStore.open(tmp_path) as again:
        assert len(list(again.archive(TOPIC).publications())) == 1
