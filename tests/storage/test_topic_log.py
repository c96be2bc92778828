"""Log of one topic on disk: its index is made when the store is opened, not in an event."""

from __future__ import annotations

from pathlib import Path
from time import thread_time

from skipring.core.log import LogIndex
from skipring.core.replica import Replica
from skipring.storage.store import PublicationStore
from tests.support.machines import TOPIC
from tests.support.publications import made_many

COUNT = 20_000


def test_recovery_of_a_replica_does_not_read_the_log_again(tmp_path: Path) -> None:
    made = made_many(COUNT)
    with PublicationStore.open(tmp_path) as store:
        store.archive(TOPIC).write(0, *made)
        store.commit()
    with PublicationStore.open(tmp_path) as store:
        log = store.archive(TOPIC)
        replica = Replica(TOPIC, log)
        begun_s = thread_time()
        replica.recover({})
        recovered_s = thread_time() - begun_s
        assert replica.count == COUNT
        assert replica.index().root == LogIndex.of(log).trie.root
        begun_s = thread_time()
        LogIndex.of(log)
        assert recovered_s < (thread_time() - begun_s) / 10


def test_index_is_not_older_than_the_last_write(tmp_path: Path) -> None:
    first, second = made_many(2)
    with PublicationStore.open(tmp_path) as store:
        store.archive(TOPIC).write(0, first)
        store.commit()
    with PublicationStore.open(tmp_path) as store:
        log = store.archive(TOPIC)
        log.write(1, second)
        assert len(log.index().trie) == 2
        assert log.index().trie is not log.index().trie
