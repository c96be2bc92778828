"""Damaged and lost disks: a node serves nothing corrupt, and other members restore everything."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from faults.requests import TOPIC, ask, fetch_all, stranger
from skipring.api.cursor import Cursor
from skipring.api.reader import Publication as ReadPublication
from skipring.api.subscription import Subscription
from skipring.core.batches import RecordBatch
from skipring.core.log_messages import LogPage
from skipring.core.messages import Publications, PublishMany, PublishNew
from skipring.core.publications import Publication
from skipring.core.subscriber import Subscriber
from skipring.errors import CursorError
from skipring.net.transport import Transport
from skipring.node.host import NodeHost
from skipring.storage.store import LogStore
from skipring.testing import Cluster
from skipring.wire.codec import decode
from skipring.wire.framing import FrameReader
from tests.support.connections import InspectedConnection, inspected

TICK_S = 0.05
DEADLINE_S = 120.0  # for operations that take a second: the machine is shared
KEEPER, VICTIM, NEWCOMER = "keeper", "victim", "newcomer"
WRITERS = 64  # in parallel: they share commits and batches
PAYLOAD_BYTES = (20, 200, 3000)
EDGE_BYTES = 128  # at the begin and the end of a file: headers and footers
UNHURT = {"node-id", "publications.lock"}  # no data, or not of the topic


def publications_of(batches: Iterable[RecordBatch]) -> list[Publication]:
    return [publication for batch in batches for publication in batch.publications()]


class Truth(dict[bytes, Publication]):
    """The published publications by id."""

    @classmethod
    def of(cls, publications: Iterable[Publication]) -> Truth:
        return cls((each.id, each) for each in publications)

    def check(self, given: Iterable[Publication]) -> None:
        """Assert that everything given was published in exactly this form."""
        for each in given:
            assert self.get(each.id) == each, f"not what was published: {each}"

    def check_stored(self, directory: Path) -> None:
        """Assert that the disk contains all of it, nothing else and no damage."""
        with LogStore.open(directory) as store:
            log = store.log(TOPIC)
            assert store.damage is None
            batches = [entry.batch for entry in log.read_range(0, log.end)]
            assert [each.id for each in batches] == [key for key, _ in log.entries()]
        stored = publications_of(batches)
        self.check(stored)
        assert sorted(each.id for each in stored) == sorted(self)


@pytest.fixture(params=[None, 4096], ids=["one segment", "many segments"])
def segments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the size of segments, so that most of them are sealed."""
    if request.param is not None:
        use_small_segments(monkeypatch, request.param)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_segments(monkeypatch, 4096)


def use_small_segments(monkeypatch: pytest.MonkeyPatch, bytes_max: int) -> None:
    monkeypatch.setattr(LogStore, "open", partial(LogStore.open, segment_bytes_max=bytes_max))


# -- outbound publications ---------------------------------------------------------------------


class Sent:
    """All batches that one node has sent to others, in any message."""

    def __init__(self, name: str, patch: pytest.MonkeyPatch) -> None:
        self.batches: list[RecordBatch] = []
        send = Transport.send

        def note_and_send(links: Transport, to: str, frame: bytes) -> None:
            if links.node == name:
                self._note(frame)
            send(links, to, frame)

        patch.setattr(Transport, "send", note_and_send)

    def _note(self, frame: bytes) -> None:
        for cut in FrameReader().feed(frame):
            match decode(cut).message:
                case Publications(publications=several) | PublishMany(publications=several):
                    self.batches += several
                case LogPage(batches=several):
                    self.batches += [each for each in several if each.body]
                case PublishNew(publication=one):
                    self.batches.append(one)


async def listed(name: str, address: str) -> list[Publication]:
    """Return all publications that a member serves to a client, under their batch ids."""
    found: list[RecordBatch] = []
    start: int | None = 0
    async with stranger() as outsider:
        while start is not None:
            question = fetch_all(start, contents=True)
            page = await ask(outsider, (name, address), question, LogPage)
            found += page.batches
            start = page.next
    assert all(each.is_genuine(TOPIC) for each in found)
    return publications_of(found)


def as_stored(read: ReadPublication) -> Publication:
    """Return a read publication in its published form."""
    return Publication(
        publisher=read.publisher,
        seq=read.seq,
        payload=read.payload,
        time=read.time,
        key=read.key,
        headers=read.headers,
        id=read.id,
    )


# -- a ring with one member on a disk ----------------------------------------------------------


@asynccontextmanager
async def keeper_alone(tick_s: float = TICK_S) -> AsyncIterator[Cluster]:
    """Yield a ring of one member without a disk."""
    async with Cluster(n=0, tick_s=tick_s, topic=TOPIC) as cluster:
        await cluster.join(KEEPER)
        yield cluster


def victim_of(cluster: Cluster, directory: Path, tick_s: float = TICK_S) -> InspectedConnection:
    return inspected(cluster.url, data_dir=directory, name=VICTIM, tick_s=tick_s)


def machine_of(node: NodeHost) -> Subscriber:
    machine = node.machine(TOPIC)
    assert machine is not None
    return machine


def truth_of(cluster: Cluster) -> Truth:
    """Return the publications of the keeper."""
    return Truth.of(publications_of(machine_of(cluster.node(KEEPER)).batches()))


async def fill(cluster: Cluster, topic: Subscription, count: int, writers: int = WRITERS) -> None:
    """Publish at the keeper and at the victim in parallel; return when both have all."""
    rng, numbers = Random(count), iter(range(count))

    async def write() -> None:
        for number in numbers:
            payload = rng.randbytes(rng.choice(PAYLOAD_BYTES))
            if number % 3:
                await cluster.publish(KEEPER, payload)
                await asyncio.sleep(0)  # without a disk nothing else yields
            else:
                await topic.publish(payload, key=b"%d" % number, headers={"number": str(number)})

    await asyncio.gather(*(write() for _ in range(writers)))
    await topic.synced(DEADLINE_S)


async def durable(cluster: Cluster, connection: InspectedConnection) -> None:
    """Wait until all publications of the victim are below its durable mark."""
    assert connection.session.store is not None
    log = connection.session.store.log(TOPIC)
    await cluster.until(lambda: log.durable_end == log.end > 0, DEADLINE_S)


async def pristine(cluster: Cluster, directory: Path, count: int) -> list[Path]:
    """Return the directory of the victim after a stop, and after a crash."""
    living, stopped, crashed = (directory / name for name in ("living", "stopped", "crashed"))
    for is_last in (False, True):
        async with victim_of(cluster, living) as node, node.subscribe(TOPIC) as topic:
            await fill(cluster, topic, count // 2)
            await durable(cluster, node)
            if is_last:
                shutil.copytree(living, crashed)
    shutil.copytree(living, stopped)
    return [stopped, crashed]


# -- damage ------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A byte of a file in a directory."""

    directory: Path
    file: Path  # in the directory
    offset: int


class Vandal:
    """A source of damage: files in turn, bytes at random."""

    def __init__(self, originals: list[Path], rng: Random) -> None:
        self._rng = rng
        self._files = [
            (original, path.relative_to(original), path.stat().st_size)
            for original in originals
            for path in sorted(original.rglob("*"))
            if path.name not in UNHURT and path.is_file() and path.stat().st_size
        ]

    def damaged(self, number: int, copy: Path) -> str:
        """Copy a directory and damage it in one place or several; return a description."""
        first = self._place(number)
        shutil.copytree(first.directory, copy)
        hits = [first]
        if self._rng.random() < 1 / 4:
            more = (self._place(self._rng.randrange(number + 2)) for _ in range(6))
            hits += [place for place in more if place.directory == first.directory]
        return ", ".join(self._damage(copy / place.file, place.offset) for place in hits)

    def _place(self, number: int) -> Place:
        """Return a random byte; every other time of all files, which favours large ones."""
        rng, files = self._rng, self._files
        if number % 2:
            [(directory, file, size)] = rng.choices(files, [size for _, _, size in files])
            return Place(directory, file, rng.randrange(size))
        directory, file, size = files[number // 2 % len(files)]
        edge = rng.randrange(min(EDGE_BYTES, size))
        return Place(directory, file, rng.choice((edge, size - 1 - edge, rng.randrange(size))))

    def _damage(self, path: Path, offset: int) -> str:
        data = bytearray(path.read_bytes())
        kind = self._rng.choice(("flip", "flip", "flip", "run", "cut"))
        match kind:
            case "flip":
                data[offset : offset + 1] = bytes(b ^ 1 << offset % 8 for b in data[offset:][:1])
            case "run":
                end = min(offset + self._rng.randrange(2, 2048), len(data))
                data[offset:end] = self._rng.randbytes(max(0, end - offset))
            case _:
                del data[offset:]
        path.write_bytes(data)
        return f"{kind} at {offset} of {path.parent.name}/{path.name}"


class Loss(NamedTuple):
    """Loss that a store has found when it was opened."""

    damage: str | None
    epoch: int


# -- healing -----------------------------------------------------------------------------------


async def heal(cluster: Cluster, directory: Path, truth: Truth, newcomer: str) -> Loss:
    """Start the victim and an empty new member; wait until all are equal and correct."""
    async with victim_of(cluster, directory) as node, node.subscribe(TOPIC) as topic:
        assert node.session.store is not None
        loss = Loss(node.session.store.damage, node.session.store.log(TOPIC).epoch)
        truth.check(await listed(node.name, node.session.host.address))
        await cluster.join(newcomer)
        async with asyncio.timeout(DEADLINE_S):
            read = [as_stored(await anext(topic)) for _ in truth]
        truth.check(read)
        assert sorted(each.id for each in read) == sorted(truth)
        nodes = [node.session.host, *map(cluster.node, cluster.nodes)]
        await cluster.until(lambda: are_equal(nodes), DEADLINE_S)
        await topic.synced(DEADLINE_S)
        assert await topic.read_available() == []  # nothing arrives twice
        shown = await listed(node.name, node.session.host.address)
        truth.check(shown)
        assert sorted(each.id for each in shown) == sorted(truth)
        await durable(cluster, node)
    await cluster.leave(newcomer)
    assert sorted(cluster.delivered(newcomer)) == sorted(p.payload for p in truth.values())
    assert truth_of(cluster) == truth
    truth.check_stored(directory)
    return loss


def are_equal(nodes: Iterable[NodeHost]) -> bool:
    """Return True if all tries have the same root."""
    return len({machine_of(node).trie().root() for node in nodes}) == 1


@pytest.mark.heavy
@pytest.mark.parametrize("positions", [20, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("segments")
async def test_damaged_files_of_a_stopped_node_are_never_served_and_are_repaired(
    positions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Sent(VICTIM, monkeypatch)
    found: list[Loss] = []
    async with keeper_alone() as cluster:
        originals = await pristine(cluster, tmp_path, 240)
        vandal = Vandal(originals, Random(positions))
        truth = truth_of(cluster)
        assert len(truth) == 240
        sent.batches.clear()
        copy = tmp_path / VICTIM
        for number in range(positions):
            what = vandal.damaged(number, copy)
            try:
                found.append(await heal(cluster, copy, truth, f"{NEWCOMER}{number}"))
            except BaseException as error:
                error.add_note(f"position {number}: {what}")
                raise
            shutil.rmtree(copy)
    assert all(batch.is_genuine(TOPIC) for batch in sent.batches)
    truth.check(publications_of(sent.batches))
    assert any(loss.damage for loss in found)
    assert len({loss.epoch for loss in found}) > 1, "an epoch ends with a loss"
    served = sum(batch.count for batch in sent.batches)
    assert served > len(truth) * positions / 10  # others were served, too


@pytest.mark.heavy
@pytest.mark.parametrize("count", [3_000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_node_with_a_deleted_data_directory_recovers_every_publication(
    tmp_path: Path, count: int
) -> None:
    directory, tick_s = tmp_path / VICTIM, 0.5
    async with keeper_alone(tick_s) as cluster:
        async with victim_of(cluster, directory, tick_s) as node, node.subscribe(TOPIC) as topic:
            await fill(cluster, topic, count)
            await durable(cluster, node)
            assert node.session.store is not None
            old = node.session.store.id
        truth = truth_of(cluster)
        truth.check_stored(directory)
        shutil.rmtree(directory)
        async with victim_of(cluster, directory, tick_s) as node, node.subscribe(TOPIC) as topic:
            async with asyncio.timeout(DEADLINE_S):
                truth.check([as_stored(await anext(topic)) for _ in truth])
            await topic.synced(DEADLINE_S)
            await durable(cluster, node)
            assert node.session.store is not None
            assert node.session.store.id != old
        assert truth_of(cluster) == truth
    assert len(truth) == count
    truth.check_stored(directory)


# -- cursors -----------------------------------------------------------------------------------


async def read_on(cluster: Cluster, directory: Path, cursor: Cursor, count: int) -> Truth:
    """Read from a cursor on until ``count`` publications have arrived; return them."""
    async with (
        victim_of(cluster, directory) as node,
        node.subscribe(TOPIC, cursor) as topic,
        asyncio.timeout(DEADLINE_S),
    ):
        read = Truth.of([as_stored(await anext(topic)) for _ in range(count)])
        await topic.synced(DEADLINE_S)
        await durable(cluster, node)
        assert await topic.read_available() == []
    return read


async def begun(cluster: Cluster, directory: Path) -> tuple[Cursor, Truth]:
    """Return a cursor after the first 30 of 60 publications, and the other half in log order."""
    async with victim_of(cluster, directory) as node, node.subscribe(TOPIC) as topic:
        await fill(cluster, topic, 60, writers=1)  # batches of one record
        await durable(cluster, node)
        for _ in range(30):
            await anext(topic)
        cursor = topic.cursor()
        rest = [as_stored(await anext(topic)) for _ in range(30)]
    return cursor, Truth.of(rest)


def spoil(directory: Path, publication: Publication) -> None:
    """Damage one publication in its segment."""
    (path,) = [
        path
        for path in directory.rglob("*")
        if path.is_file() and publication.payload in path.read_bytes()
    ]
    data = bytearray(path.read_bytes())
    data[data.index(publication.payload) + 5] ^= 1
    path.write_bytes(data)


def publications_in(directory: Path) -> list[Publication]:
    """Return the stored publications, in the order of their offsets."""
    with LogStore.open(directory) as store:
        log = store.log(TOPIC)
        return publications_of(entry.batch for entry in log.read_range(0, log.end))


@pytest.mark.usefixtures("small_segments")
async def test_publication_lost_after_a_cursor_and_restored_is_read(tmp_path: Path) -> None:
    async with keeper_alone() as cluster:
        cursor, rest = await begun(cluster, tmp_path)
        spoil(tmp_path, list(rest.values())[7])
        assert await read_on(cluster, tmp_path, cursor, len(rest)) == rest


@pytest.mark.usefixtures("small_segments")
async def test_publication_lost_before_a_cursor_and_restored_is_read_again(tmp_path: Path) -> None:
    async with keeper_alone() as cluster:
        cursor, rest = await begun(cluster, tmp_path)
        lost = publications_in(tmp_path)[7]
        spoil(tmp_path, lost)
        expected = Truth({**rest, lost.id: lost})
        assert await read_on(cluster, tmp_path, cursor, len(expected)) == expected


async def test_cursor_before_a_lost_end_stays_valid(tmp_path: Path) -> None:
    async with keeper_alone() as cluster:
        cursor, rest = await begun(cluster, tmp_path)
        spoil(tmp_path, publications_in(tmp_path)[-1])
        assert await read_on(cluster, tmp_path, cursor, len(rest)) == rest


async def test_cursor_after_a_lost_end_is_refused(tmp_path: Path) -> None:
    async with keeper_alone() as cluster:
        async with victim_of(cluster, tmp_path) as node, node.subscribe(TOPIC) as topic:
            await fill(cluster, topic, 20, writers=1)
            for _ in range(20):
                await anext(topic)
            await durable(cluster, node)
            cursor = topic.cursor()
        spoil(tmp_path, publications_in(tmp_path)[-1])
        async with victim_of(cluster, tmp_path) as node:
            with pytest.raises(CursorError, match=r"start=.all."):
                node.subscribe(TOPIC, cursor)


@pytest.mark.parametrize("loss", ["the directory", "a publication in the middle"])
async def test_old_cursor_is_refused_after_a_loss_even_when_everything_is_restored(
    loss: str, tmp_path: Path
) -> None:
    directory = tmp_path / VICTIM
    async with keeper_alone() as cluster:
        cursor, _ = await begun(cluster, directory)
        truth = truth_of(cluster)
        if loss == "the directory":
            shutil.rmtree(directory)
        else:
            spoil(directory, publications_in(directory)[40])
        for _ in range(2):
            async with victim_of(cluster, directory) as node:
                with pytest.raises(CursorError, match=r"start=.all."):
                    await node.subscribe(TOPIC, cursor).__aenter__()
                async with node.subscribe(TOPIC) as topic:
                    await topic.synced(DEADLINE_S)
                    await durable(cluster, node)
        truth.check_stored(directory)
