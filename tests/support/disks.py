"""Disks whose commits a test delays or lets fail."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from skipring.errors import StorageError
from skipring.storage.store import PublicationStore


class Disk:
    """Commits of all stores: they wait for ``gate``, and fail while ``error`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.error: StorageError | None = None
        commit = PublicationStore.commit

        def gated(store: PublicationStore, report: Callable[[], None] = lambda: None) -> None:
            assert self.gate.wait(60)
            if self.error is not None:
                raise self.error
            commit(store, report)

        monkeypatch.setattr(PublicationStore, "commit", gated)
