"""Backfill of a long history, also with a kill of the new member."""

from __future__ import annotations

import signal
from collections import deque
from pathlib import Path
from random import Random
from time import sleep

import pytest

from faults.load import written_bytes
from faults.processes import LiveProcesses
from faults.requests import TOPIC
from skipring.core.antientropy import AntiEntropy
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Outbox, Send, Store
from skipring.core.log import MemoryLog
from skipring.core.messages import CheckAndPublish, CheckTrie, Message, Publications
from skipring.core.replica import Replica
from skipring.core.transfers import TransferTracker
from skipring.storage.store import LogStore
from skipring.testing import Cluster
from tests.support.connections import inspected

HOLDER, NEWCOMER = "holder", "newcomer"
DEADLINE_S = 300.0  # for operations that take half a minute: the machine is shared
TICK_S = 1.0  # as in production
COMMITTED_AT_ONCE = 5_000
KILLS_MAX = 20  # on a busy machine a kill may come too late


def batch(first: int, count: int) -> RecordBatch:
    """Return a unique batch of a history."""
    records = [
        BatchRecord(b"%d is a number " % seq * (1 + seq % 7), 1 + seq, b"%d" % (seq % 100))
        for seq in range(first, first + count)
    ]
    return RecordBatch.of(records, publisher=f"node{first % 5}", first=first, topic=TOPIC)


def history_of(count: int) -> list[RecordBatch]:
    """Return a history of ``count`` records in batches of 1 to 5."""
    made: list[RecordBatch] = []
    first = 0
    while first < count:
        made.append(batch(first, min(1 + len(made) % 5, count - first)))
        first = made[-1].end
    return made


def filled(directory: Path, count: int) -> list[RecordBatch]:
    """Write a history into the data directory of a node; return it."""
    history = history_of(count)
    with LogStore.open(directory) as store:
        log = store.log(TOPIC)
        for each in history:
            log.append(each)
            if store.unwritten >= COMMITTED_AT_ONCE:
                store.commit()
        store.commit()
    return history


def kept(directory: Path, history: list[RecordBatch]) -> int:
    """Return the stored records of a history; assert an intact store without other batches."""
    with LogStore.open(directory) as store:
        log = store.log(TOPIC)
        assert store.damage is None
        assert log.durable_end == log.end == log.records
        stored = [entry.batch for entry in log.read_range(0, log.end)]
        assert [each.id for each in stored] == [key for key, _ in log.entries()]
    by_id = {each.id: each for each in history}
    assert len({each.id for each in stored}) == len(stored)
    for each in stored:
        assert by_id[each.id] == each
    return sum(each.count for each in stored)


# -- joining -----------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_new_member_gets_a_long_history(tmp_path: Path, count: int) -> None:
    history = filled(tmp_path / "ring" / HOLDER, count)
    own = tmp_path / "own"
    ring = Cluster(n=0, tick_s=TICK_S, topic=TOPIC, data_dir=tmp_path / "ring")
    async with ring as cluster:
        await cluster.join(HOLDER)
        machine = cluster.node(HOLDER).machine(TOPIC)
        assert machine is not None
        async with (
            inspected(cluster.url, data_dir=own, name=NEWCOMER, tick_s=TICK_S) as newcomer,
            newcomer.subscribe(TOPIC) as topic,
        ):
            assert newcomer.session.store is not None
            log = newcomer.session.store.log(TOPIC)
            await cluster.until(lambda: log.durable_end == count, DEADLINE_S)
            await topic.synced(DEADLINE_S)
            assert topic.lag == log.end == count
        assert len(machine.trie()) == len(history)
    assert kept(own, history) == count


# -- repeated transfers ------------------------------------------------------------------------


class Pair:
    """A node with a history, a node without, and the messages between them."""

    def __init__(self, count: int) -> None:
        config = ProtocolConfig()
        self._logs = {
            HOLDER: MemoryLog([batch(first, 1) for first in range(count)]),
            NEWCOMER: MemoryLog(),
        }
        self._machines: dict[str, AntiEntropy] = {}
        self._rng = Random(count)
        for name, log in self._logs.items():
            replica = Replica(TOPIC, log)
            replica.recover({})
            assert len(replica.index().root()) > 0  # the digests of the holder are computed
            self._machines[name] = AntiEntropy(name, replica, TransferTracker(config), config)
        self._on_the_way: deque[tuple[str, Message]] = deque()
        self.sent = 0  # batches

    def tick(self, name: str) -> None:
        out = Outbox()
        if self._machines[name].on_tick(out):
            self._machines[name].start_session([other_than(name)], self._rng, out)
        self._perform(name, out)

    def ask_to_confirm(self, name: str) -> None:
        out = Outbox()
        self._machines[name].ask_to_confirm([other_than(name)], out)
        self._perform(name, out)

    def deliver(self) -> bool:
        """Deliver the oldest message; return False if there is none."""
        if not self._on_the_way:
            return False
        to, message = self._on_the_way.popleft()
        out = Outbox()
        match message:
            case Publications():
                self._machines[to].on_publications(message, other_than(to), out)
            case CheckTrie() | CheckAndPublish():
                self._machines[to].on_check(message, out)
        self._perform(to, out)
        return True

    def _perform(self, name: str, out: Outbox) -> None:
        for effect in out:
            match effect:
                case Store(batches=stored):
                    for each in stored:
                        self._logs[name].append(each)
                case Send(to=to, message=message):
                    self._on_the_way.append((to, message))
                    if isinstance(message, Publications):
                        self.sent += len(message.publications)

    @property
    def lacking(self) -> int:
        return self._logs[HOLDER].end - self._logs[NEWCOMER].end


def other_than(name: str) -> str:
    return NEWCOMER if name == HOLDER else HOLDER


def test_history_is_transferred_once_if_it_takes_some_ticks() -> None:
    pair = Pair(30_000)
    pair.tick(NEWCOMER)
    for step in range(1_000):
        if not pair.deliver() and not pair.lacking:
            break
        if step % 6 == 5:
            pair.tick(NEWCOMER)
            pair.tick(HOLDER)
    assert pair.lacking == 0
    assert pair.sent < 1.2 * 30_000


def test_sync_requests_do_not_repeat_the_transfer() -> None:
    pair = Pair(30_000)
    pair.tick(NEWCOMER)
    for step in range(1_000):
        if not pair.deliver():
            break
        if step % 6 == 5:
            pair.ask_to_confirm(NEWCOMER)
    assert pair.lacking == 0
    assert pair.sent < 1.2 * 30_000


# -- kills during a backfill -------------------------------------------------------------------


class WatchedProcesses(LiveProcesses):
    """Processes that are checked often enough to be killed in the middle of a backfill."""

    def pass_time(self) -> None:
        sleep(0.002)  # Measured: the history arrives within 0.15 to 0.4 s


def killed_and_restarted(
    ring: LiveProcesses, name: str, enough: int, history: list[RecordBatch]
) -> int:
    """Kill a new member after ``enough`` written bytes, then let it fetch the rest.

    Return the number of its records at the kill.
    """
    ring.start(name)
    ring.until(lambda: written_bytes(ring.data(name)) > enough)
    ring.kill(name)
    part = kept(ring.data(name), history)
    joins = len(ring.events(name, "joined"))
    ring.restart(name)
    ids = {key for each in history for key in each.record_ids()}
    ring.until(lambda: ring.stored(name) == ids)
    # A node that has not joined cannot hand its publications over.
    ring.until(lambda: len(ring.events(name, "joined")) > joins)
    ring.send_signal(name, signal.SIGTERM)  # shown publications may not be written yet
    assert ring.exit_status(name) == 0
    return part


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("count", "kills"), [(15_000, 3), pytest.param(30_000, 5, marks=pytest.mark.slow)]
)
def test_member_killed_during_a_backfill_has_everything_after_a_restart(
    tmp_path: Path, count: int, kills: int
) -> None:
    rng = Random(5)
    history = filled(tmp_path / HOLDER, count)
    half = written_bytes(tmp_path / HOLDER) // 2
    parts = []
    with WatchedProcesses(tmp_path, tick_s=0.25) as ring:
        ring.start_supervisor()
        ring.start(HOLDER)
        for loop in range(KILLS_MAX):
            name = f"{NEWCOMER}{loop}"
            parts.append(killed_and_restarted(ring, name, rng.randrange(half), history))
            assert kept(ring.data(name), history) == count
            if loop + 1 >= kills and any(0 < part < count for part in parts):
                return
    pytest.fail(f"no kill was in the middle of a backfill: {parts}")
