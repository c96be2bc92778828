"""Disks whose commits a test delays or lets fail."""

from __future__ import annotations

import threading

import pytest

from skipring.errors import StorageError
from skipring.node import group_commit
from skipring.storage.store import LogStore


class Disk:
    """Commits of all stores: they wait for ``gate``, and fail while ``error`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.error: StorageError | None = None
        commit = LogStore.commit

        def gated(store: LogStore) -> None:
            assert self.gate.wait(60)
            if self.error is not None:
                raise self.error
            commit(store)

        monkeypatch.setattr(LogStore, "commit", gated)
        # All commits run in threads: a closed gate must not block the loop.
        monkeypatch.setattr(group_commit, "INLINE_BYTES_MAX", -1)
