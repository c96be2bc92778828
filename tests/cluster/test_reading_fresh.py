"""Fresh publications: readable before they are stored, read and published in packs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from skipring.api import reader as reading
from skipring.api.reader import FRESH_BYTES_MAX, FRESH_MAX, READ_AT_ONCE, Publication, Reader, Start
from skipring.api.subscription import PUBLISHED_TOGETHER, READ_MANY, Subscription
from skipring.api.topic_session import TopicSession
from skipring.core.effects import Deliver, Origin
from skipring.core.events import Received
from skipring.core.log import MemoryLog
from skipring.core.messages import PublishMany, PublishNew
from skipring.core.publications import Publication as StoredPublication
from skipring.core.publications import with_id
from skipring.errors import InputError, SkipringError
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.storage.store import PublicationStore
from skipring.testing import Cluster
from tests.support.connections import DEADLINE_S, to

SECOND = 1_000_000
NOW = 1_000 * SECOND
TOPIC = "news"


class RecordingLog(MemoryLog):
    """A log that records which offsets are read."""

    def __init__(self, publications: Iterable[StoredPublication] = ()) -> None:
        super().__init__(publications)
        self._read: list[int] = []

    def read(self, offset: int) -> StoredPublication | None:
        assert offset < self.end, "an offset that is not stored yet is never read"
        self._read.append(offset)
        return super().read(offset)

    def read_offsets(self) -> list[int]:
        """Return the offsets that were read since the last call."""
        read_offsets, self._read = self._read, []
        return read_offsets


class Shelf:
    """A log and a reader that is notified of publications before they are stored."""

    def __init__(self, start: Start = "all", before: Iterable[int] = ()) -> None:
        rows = with_id((self.made(seq, when) for seq, when in enumerate(before)), TOPIC)
        self.archive = RecordingLog(rows)
        self.reader = Reader(TOPIC, self.archive, start, NOW)
        self._waiting: list[StoredPublication] = []

    @staticmethod
    def made(seq: int, when: int = NOW, size: int = 8) -> StoredPublication:
        return StoredPublication(publisher="a", seq=seq, time=when, payload=bytes(size))

    def come(
        self, *times: int, origin: Origin = Origin.SPREAD, hops: int = 2, size: int = 8
    ) -> tuple[StoredPublication, ...]:
        """Deliver a pack that is not stored yet."""
        start = self.archive.end + len(self._waiting)
        pack = tuple(self.made(start + place, when, size) for place, when in enumerate(times))
        self._waiting += pack
        self.reader.on_deliver(Deliver(pack, start, origin, hops))
        return pack

    def store(self) -> None:
        """Store the delivered publications, as the machine does."""
        rows, self._waiting = with_id(self._waiting, TOPIC), []
        self.archive.write(self.archive.end, *rows)

    def read(self, limit: int = 10 * FRESH_MAX) -> list[int]:
        return [publication.offset for publication in self.reader.fetch(limit)]


# -- fresh or stored -----------------------------------------------------------------------------


def test_unstored_publication_is_read_with_all_fields() -> None:
    shelf = Shelf()
    given = StoredPublication(
        publisher="a", seq=3, time=NOW, payload=b"p", key=b"k", headers={"h": "1"}
    )
    shelf.reader.on_deliver(Deliver((given,), 0, Origin.SPREAD, 4))
    [found] = shelf.reader.fetch(10)
    assert (found.publisher, found.seq, found.time, found.payload) == ("a", 3, NOW, b"p")
    assert (found.key, found.headers, found.hops) == (b"k", {"h": "1"}, 4)
    assert (found.offset, found.replayed) == (0, False)


@pytest.mark.parametrize(
    "given",
    [
        StoredPublication(publisher="a", seq=3, payload=b""),
        StoredPublication(publisher="a", seq=0, time=NOW, payload=b"p", key=b""),
        StoredPublication(publisher="b", seq=300, time=NOW, payload=b"p", headers={"h": "1"}),
    ],
)
def test_unstored_publication_has_the_id_of_its_stored_form(given: StoredPublication) -> None:
    shelf = Shelf()
    shelf.reader.on_deliver(Deliver((given,), 0, Origin.SPREAD, 1))
    [found] = shelf.reader.fetch(10)
    assert given.id == b""
    assert found.id == given.with_id(TOPIC).id


def test_fresh_publication_is_not_read_from_the_log() -> None:
    shelf = Shelf(before=(NOW, NOW))
    shelf.come(NOW, NOW)
    shelf.store()
    shelf.come(NOW)
    assert shelf.read() == [0, 1, 2, 3, 4]
    assert shelf.archive.read_offsets() == [0, 1]


def test_pack_is_read_in_any_portions() -> None:
    shelf = Shelf()
    shelf.come(*(NOW,) * 10)
    shelf.come(*(NOW,) * 5)
    rng = Random(1)
    found: list[int] = []
    for _ in range(15):
        limit = rng.randint(1, 4)
        part = shelf.read(limit)
        assert len(part) <= limit
        found += part
        assert shelf.reader.offset == len(found)
        assert shelf.reader.lag == 15 - len(found)
    assert found == list(range(15))


def test_excess_packs_are_read_by_the_next_call() -> None:
    shelf = Shelf()
    for _ in range(READ_AT_ONCE + 3):
        shelf.come(NOW)
    assert shelf.read() == list(range(READ_AT_ONCE))
    assert shelf.read() == list(range(READ_AT_ONCE, READ_AT_ONCE + 3))


def test_publications_beyond_the_given_end_stay() -> None:
    shelf = Shelf()
    shelf.come(*(NOW,) * 6)
    assert [found.offset for found in shelf.reader.fetch(100, end=4)] == [0, 1, 2, 3]
    assert shelf.reader.fetch(100, end=4) == []
    assert shelf.read() == [4, 5]


def test_hops_are_known_except_after_repair() -> None:
    shelf = Shelf()
    shelf.come(NOW, hops=0, origin=Origin.OWN)
    shelf.come(NOW, hops=7)
    shelf.come(NOW, hops=0, origin=Origin.REPAIR)
    assert [found.hops for found in shelf.reader.fetch(9)] == [0, 7, None]


# -- size of the fresh buffer --------------------------------------------------------------------


def test_only_the_last_of_many_stored_publications_are_fresh() -> None:
    shelf, many = Shelf(), FRESH_MAX // 4
    for _ in range(6):
        shelf.come(*(NOW,) * many)
        shelf.store()
    assert shelf.read(6 * many) == list(range(READ_AT_ONCE))  # one batch per read
    found = list(range(READ_AT_ONCE))
    while part := shelf.read(6 * many):
        found += part
    assert found == list(range(6 * many))
    assert shelf.archive.read_offsets() == list(range(2 * many))


def test_only_the_last_bytes_of_stored_publications_are_fresh() -> None:
    shelf, size = Shelf(), FRESH_BYTES_MAX // 4
    for _ in range(6):
        shelf.come(NOW, size=size)
        shelf.store()
    assert shelf.read() == list(range(6))
    assert shelf.archive.read_offsets() == [0, 1, 2]  # a payload counts with its overhead


def test_unstored_publications_are_fresh_without_limit() -> None:
    shelf, many = Shelf(), FRESH_MAX // 2
    shelf.come(*(NOW,) * many)
    shelf.store()
    for _ in range(6):
        shelf.come(*(NOW,) * many)
    found: list[int] = []
    while part := shelf.read():
        found += part
    assert found == list(range(7 * many))
    assert shelf.archive.read_offsets() == list(range(many))


def test_stored_publications_leave_the_fresh_buffer_when_more_arrive() -> None:
    shelf, many = Shelf(), FRESH_MAX // 2
    for _ in range(6):
        shelf.come(*(NOW,) * many)
    shelf.store()
    shelf.come(NOW)
    while shelf.read():
        pass
    assert shelf.archive.read_offsets() == list(range(5 * many))


def test_read_publications_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FRESH_MAX", 8)
    shelf = Shelf()
    for offset in range(0, 400, 8):
        shelf.come(*(NOW,) * 8)
        shelf.store()
        assert shelf.read() == list(range(offset, offset + 8))
    assert shelf.archive.read_offsets() == []


# -- skipped publications inside packs -------------------------------------------------------------


def test_start_new_skips_old_publications_inside_repaired_packs() -> None:
    shelf = Shelf("new", before=(NOW,))
    shelf.come(NOW - 1, NOW - 1, NOW, NOW - 1, NOW, NOW - 1, origin=Origin.REPAIR)  # 1 to 6
    assert (shelf.reader.offset, shelf.reader.end, shelf.reader.lag) == (3, 7, 2)
    shelf.come(NOW - 1, NOW - 1)  # 7, 8: new to all members
    shelf.come(NOW - 1, NOW - 1, origin=Origin.REPAIR)  # 9, 10
    assert shelf.reader.lag == 4
    assert shelf.read() == [3, 5, 7, 8]
    assert (shelf.reader.offset, shelf.reader.lag) == (11, 0)


def test_datetime_start_skips_old_publications_inside_any_pack() -> None:
    shelf = Shelf(datetime.fromtimestamp(NOW // SECOND, UTC), before=(NOW - 1, NOW))
    shelf.come(NOW, NOW - 1, NOW)  # 2 to 4
    shelf.store()
    shelf.come(NOW - 1, NOW - 1, NOW, origin=Origin.REPAIR)  # 5 to 7
    assert shelf.read() == [1, 2, 4, 7]
    assert (shelf.reader.offset, shelf.reader.lag) == (8, 0)


def test_skipped_publication_stays_skipped_after_it_leaves_the_fresh_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "FRESH_MAX", 2)
    shelf = Shelf("new")
    for _ in range(4):
        shelf.come(NOW, NOW - 1, NOW, origin=Origin.REPAIR)
        shelf.store()
    assert shelf.read() == [0, 2, 3, 5, 6, 8, 9, 11]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize("seed", range(20))
def test_random_arrivals_are_read_once_and_in_order(seed: int, limit: int) -> None:
    rng = Random(seed)
    shelf = Shelf("new")
    wanted: list[int] = []
    found: list[int] = []
    for _ in range(40):
        origin = rng.choice([Origin.SPREAD, Origin.REPAIR])
        times = [rng.choice([NOW - 1, NOW]) for _ in range(rng.randint(1, 5))]
        start = shelf.reader.end
        shelf.come(*times, origin=origin)
        wanted += [
            offset
            for offset, when in enumerate(times, start)
            if when >= NOW or origin is Origin.SPREAD
        ]
        assert shelf.reader.lag == len(wanted) - len(found)
        if rng.random() < 0.4:
            shelf.store()
        if rng.random() < 0.6:
            found += shelf.read(limit)
    while shelf.reader.lag:
        found += shelf.read(limit)
    assert found == wanted


# -- readers in a ring ---------------------------------------------------------------------------


async def test_cursor_never_exceeds_stored_publications(tmp_path: Path) -> None:
    """Read before the commit; after a crash these publications are read again."""
    async with Cluster(n=0) as cluster, to(cluster, tmp_path) as node:
        session = TopicSession(node.session, TOPIC, "all")
        news = await Subscription(session).__aenter__()
        await news.publish(b"durable")
        session.reader.on_deliver(Deliver((Shelf.made(0), Shelf.made(1)), 1, Origin.SPREAD, 1))
        assert (news.lag, session.reader.end) == (3, 3)
        found = await news.read_many(timeout=DEADLINE_S)
        assert [each.offset for each in found] == [0, 1, 2]
        assert (news.lag, session.reader.offset) == (0, 3)
        assert news.cursor().offset == 1


async def test_closed_node_has_stored_all_delivered_publications(tmp_path: Path) -> None:
    got: list[tuple[int, StoredPublication]] = []

    def deliver(delivery: Deliver) -> None:
        got.extend(enumerate(delivery.publications, delivery.offset))

    with PublicationStore.open(tmp_path) as store:
        patient = NodeSettings(tick_s=1e3, flush_s=1e3)
        node = NodeHost("m", patient, rng=Random(0), store=store)
        await node.start("127.0.0.1", 0)
        try:
            node.subscribe(TOPIC)
            node.attach(TOPIC, deliver)
            node.dispatch(TOPIC, Received(PublishMany((Shelf.made(0), Shelf.made(1)))))
            node.dispatch(TOPIC, Received(PublishNew(Shelf.made(2))))
            assert (len(got), store.archive(TOPIC).end) == (3, 0)
        finally:
            await node.close()
    with PublicationStore.open(tmp_path) as store:
        archive = store.archive(TOPIC)
        assert [archive.read(offset) for offset, _ in got] == [
            publication.with_id(TOPIC) for _, publication in got
        ]
        assert archive.end == 3


async def test_publish_many_keeps_the_order_and_returns_after_the_commit(tmp_path: Path) -> None:
    payloads = [b"%d" % number for number in range(2 * PUBLISHED_TOGETHER + 3)]
    async with (
        Cluster(n=0) as cluster,
        to(cluster, tmp_path) as node,
        node.subscribe(TOPIC) as news,
    ):
        ids = await news.publish_many(iter(payloads))
        found = []
        while news.lag:
            found += await news.read_many(timeout=DEADLINE_S)
        assert news.cursor().offset == len(payloads)  # durable
        assert [each.payload for each in found] == payloads
        assert [each.id for each in found] == ids
        first = found[0].seq
        assert [each.seq for each in found] == list(range(first, first + len(payloads)))
        assert len(set(ids)) == len(payloads)


async def test_packs_are_read_once_and_completely_by_other_members() -> None:
    payloads = [b"%d" % number for number in range(600)]
    async with (
        Cluster(n=3) as cluster,
        to(cluster) as first,
        to(cluster) as second,
        first.subscribe(cluster.topic) as writer,
        Subscription(session := TopicSession(second.session, cluster.topic, "all")) as reader,
    ):
        await writer.synced(DEADLINE_S)
        await reader.synced(DEADLINE_S)
        ids = await writer.publish_many(payloads)
        found: list[Publication] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < len(payloads):
                found += await reader.read_many()
        assert sorted(each.id for each in found) == sorted(ids)
        await cluster.until(lambda: session.reader.end == len(payloads))
        assert reader.lag == 0  # no publication twice


def _broken() -> Iterator[bytes]:
    yield b"good"
    raise InputError("no more")


@pytest.mark.parametrize(
    "payloads",
    [
        *([b"good", "text"], [b"good", None], [b"good", bytes(1 << 20)]),
        *("text", b"bytes", None, 7, _broken()),
    ],
    ids=[
        *("a text", "nothing", "too large"),
        *("only a text", "only bytes", "nothing at all", "a number", "an error"),
    ],
)
async def test_invalid_publication_prevents_the_whole_batch(payloads: Iterable[bytes]) -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe(TOPIC) as news:
        with pytest.raises(InputError):
            await news.publish_many(payloads)
        assert news.lag == 0


async def test_publishing_no_payloads_does_nothing() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node:
        async with node.subscribe(TOPIC) as news:
            assert await news.publish_many([]) == []
            assert news.lag == 0
        with pytest.raises(SkipringError, match="no longer subscribed"):
            await news.publish_many([])


async def test_read_many_returns_available_publications_up_to_the_limit() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe(TOPIC) as news:
        await news.publish_many([b"x"] * (READ_MANY + 5))
        limits = (1, 3, READ_MANY - 4)
        found = [await news.read_many(limit, timeout=DEADLINE_S) for limit in limits]
        assert [len(each) for each in found] == [1, 3, READ_MANY - 4]
        assert len(await news.read_many(timeout=DEADLINE_S)) == 5
        assert await news.read_many(timeout=0) == []


@pytest.mark.parametrize("limit", [0, -1])
async def test_read_many_refuses_a_limit_below_one(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe(TOPIC) as news:
        await news.publish(b"x")
        with monkeypatch.context() as patch:
            patch.setattr(Reader, "fetch", lambda *_: pytest.fail("it would never end"))
            with pytest.raises(InputError, match=f"limit: expected 1 or more, got {limit}"):
                await news.read_many(limit, timeout=DEADLINE_S)
        assert len(await news.read_many(timeout=DEADLINE_S)) == 1


async def test_read_many_returns_the_first_publications_that_arrive() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node, node.subscribe(TOPIC) as news:
        reading_on = asyncio.ensure_future(news.read_many())
        await asyncio.sleep(0)
        assert not reading_on.done()
        await news.publish_many([b"1", b"2"])
        async with asyncio.timeout(DEADLINE_S):
            assert [each.payload for each in await reading_on] == [b"1", b"2"]


async def test_read_many_returns_nothing_when_the_topic_is_left() -> None:
    async with Cluster(n=0) as cluster, to(cluster) as node:
        async with node.subscribe(TOPIC) as news:
            reading_on = asyncio.ensure_future(news.read_many())
            await asyncio.sleep(0)
            assert not reading_on.done()
        async with asyncio.timeout(DEADLINE_S):
            assert await reading_on == []
            assert await news.read_many() == []
