"""Backfill of a long history, also with a kill of the new member."""

from __future__ import annotations

import signal
from collections import deque
from pathlib import Path
from random import Random
from time import sleep

import pytest

from skipring.core.antientropy import AntiEntropy
from skipring.core.backfill import TransferTracker
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Outbox, Send, Store
from skipring.core.log import MemoryLog
from skipring.core.messages import CheckAndPublish, CheckTrie, Message, Publications
from skipring.core.publications import Publication
from skipring.core.replica import Replica
from skipring.lab.faults.processes import LiveProcesses
from skipring.lab.faults.requests import TOPIC
from skipring.storage.durable_mark import losses_of
from skipring.storage.store import PublicationStore
from skipring.testing import Cluster
from tests.support.connections import inspected

HOLDER, NEWCOMER = "holder", "newcomer"
DEADLINE_S = 300.0  # for operations that take half a minute: the machine is shared
TICK_S = 1.0  # as in production
COMMITTED_AT_ONCE = 5_000
KILLS_MAX = 20  # on a busy machine a kill may come too late


def publication(seq: int) -> Publication:
    """Return a unique publication of a history."""
    payload = b"%d is a number " % seq * (1 + seq % 7)
    return Publication(
        publisher=f"node{seq % 5}", seq=seq, payload=payload, time=1 + seq, key=b"%d" % (seq % 100)
    ).with_id(TOPIC)


def filled(directory: Path, count: int) -> dict[bytes, Publication]:
    """Write a history into the data directory of a node; return it by id."""
    history = [publication(seq) for seq in range(count)]
    with PublicationStore.open(directory) as store:
        archive = store.archive(TOPIC)
        for offset, each in enumerate(history):
            archive.write(offset, each)
            if archive.unwritten == COMMITTED_AT_ONCE:
                store.commit()
        store.commit()
    return {each.id: each for each in history}


def kept(directory: Path, history: dict[bytes, Publication]) -> int:
    """Return the stored part of a history; assert an intact store without other records."""
    with PublicationStore.open(directory) as store:
        archive = store.archive(TOPIC)
        assert store.recovery.damage is None
        assert (losses_of(archive.epoch), archive.durable_end) == (0, archive.end)
        stored = list(archive.publications())
        assert [each.id for each in stored] == [key for key, _ in archive.entries()]
    assert len(stored) == archive.end == len({each.id for each in stored})
    for each in stored:
        assert history[each.id] == each
    return len(stored)


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
            archive = newcomer.session.store.archive(TOPIC)
            await cluster.until(lambda: archive.durable_end == len(history), DEADLINE_S)
            await topic.synced(DEADLINE_S)
            assert topic.lag == archive.end == len(history)
        assert len(machine.index()) == len(history)
    assert kept(own, history) == len(history) == count


# -- repeated transfers ------------------------------------------------------------------------


class Pair:
    """A node with a history, a node without, and the messages between them."""

    def __init__(self, count: int) -> None:
        config = ProtocolConfig()
        self._archives = {
            HOLDER: MemoryLog([publication(seq) for seq in range(count)]),
            NEWCOMER: MemoryLog(),
        }
        self._machines: dict[str, AntiEntropy] = {}
        self._rng = Random(count)
        for name, archive in self._archives.items():
            replica = Replica(TOPIC, archive)
            replica.recover({})
            assert len(replica.index().root()) > 0  # the digests of the holder are computed
            self._machines[name] = AntiEntropy(name, replica, TransferTracker(config), config)
        self._on_the_way: deque[tuple[str, Message]] = deque()
        self.sent = 0  # publications

    def tick(self, name: str) -> None:
        out = Outbox()
        self._machines[name].on_tick([other_than(name)], self._rng, out)
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
        for effect in out.effects:
            match effect:
                case Store(offset=offset, publications=stored):
                    self._archives[name].write(offset, *stored)
                case Send(to=to, message=message):
                    self._on_the_way.append((to, message))
                    if isinstance(message, Publications):
                        self.sent += len(message.publications)

    @property
    def lacking(self) -> int:
        return self._archives[HOLDER].end - self._archives[NEWCOMER].end


def other_than(name: str) -> str:
    return NEWCOMER if name == HOLDER else HOLDER


def test_history_is_transferred_once_without_further_requests() -> None:
    pair = Pair(30_000)
    pair.tick(NEWCOMER)
    while pair.deliver():
        pass
    assert (pair.lacking, pair.sent) == (0, 30_000)


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


def written_bytes(directory: Path) -> int:
    """Return the size of the files of a data directory."""
    return sum(path.stat().st_size for path in directory.glob("publications.*"))


class WatchedProcesses(LiveProcesses):
    """Processes that are checked often enough to be killed in the middle of a backfill."""

    def pass_time(self) -> None:
        sleep(0.002)  # Measured: the history arrives within 0.15 to 0.4 s


def killed_and_restarted(
    ring: LiveProcesses, name: str, enough: int, history: dict[bytes, Publication]
) -> int:
    """Kill a new member after ``enough`` written bytes, then let it fetch the rest.

    Return the number of its publications at the kill.
    """
    ring.start(name)
    ring.until(lambda: written_bytes(ring.data(name)) > enough)
    ring.kill(name)
    part = kept(ring.data(name), history)
    ring.restart(name)
    ring.until(lambda: ring.stored(name) == history.keys())
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
            assert kept(ring.data(name), history) == len(history)
            if loop + 1 >= kills and any(0 < part < count for part in parts):
                return
    pytest.fail(f"no kill was in the middle of a backfill: {parts}")
