"""A long history comes to one who has none of it, also if it is killed meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from skipring.core.publications import Publication
from skipring.runtime.client import Connection, connect
from skipring.storage.publications import PublicationStore
from skipring.testing import Cluster
from tests.live.asking import TOPIC
from tests.live.processes import LiveProcesses

HOLDER, NEWCOMER = "holder", "newcomer"
DEADLINE_S = 300.0  # for what takes half a minute: others use the machine too
TICK_S = 1.0  # as in use
COMMITTED_AT_ONCE = 5_000


def publication(seq: int) -> Publication:
    """A publication of a history, like no other."""
    payload = b"%d is a number " % seq * (1 + seq % 7)
    return Publication(
        publisher=f"node{seq % 5}", seq=seq, payload=payload, time=1 + seq, key=b"%d" % (seq % 100)
    ).settled(TOPIC)


def filled(directory: Path, count: int) -> dict[bytes, Publication]:
    """Write a history into the data directory of a node that is to hold it; what it is, by id."""
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
    """How much of a history is stored in a sound store; nothing else, and nothing twice."""
    with PublicationStore.open(directory) as store:
        archive = store.archive(TOPIC)
        assert store.recovery.damage is None
        assert (archive.epoch, archive.durable_end) == (0, archive.end)
        stored = list(archive.publications())
        assert [each.id for each in stored] == [key for key, _ in archive.entries()]
    assert len(stored) == archive.end == len({each.id for each in stored})
    for each in stored:
        assert history[each.id] == each
    return len(stored)


# -- one that joins ----------------------------------------------------------------------------


@pytest.mark.heavy
def test_a_newcomer_gets_a_history_of_100_000_publications(tmp_path: Path) -> None:
    history = filled(tmp_path / HOLDER, 100_000)

    async def scene() -> None:
        def member(name: str) -> Connection:
            return connect(cluster.url, data_dir=tmp_path / name, name=name, tick_s=TICK_S)

        async with (
            Cluster(n=0, tick_s=TICK_S) as cluster,
            member(HOLDER) as holder,
            holder.subscribe(TOPIC, start="new"),
            member(NEWCOMER) as newcomer,
            newcomer.subscribe(TOPIC) as topic,
        ):
            assert newcomer.store is not None
            archive = newcomer.store.archive(TOPIC)
            await cluster.until(lambda: archive.durable_end == len(history), DEADLINE_S)
            await topic.synced(DEADLINE_S)
            assert topic.lag == len(history)

    asyncio.run(scene())
    assert kept(tmp_path / NEWCOMER, history) == len(history)
    assert kept(tmp_path / HOLDER, history) == len(history)


# -- one that is killed meanwhile --------------------------------------------------------------


def written_bytes(directory: Path) -> int:
    """How much is in the files of a data directory."""
    return sum(path.stat().st_size for path in directory.glob("publications.*"))


@pytest.mark.heavy
def test_one_that_is_killed_while_a_history_comes_has_all_of_it_after_a_restart(
    tmp_path: Path,
) -> None:
    rng = Random(5)
    history = filled(tmp_path / HOLDER, 30_000)
    whole = written_bytes(tmp_path / HOLDER)
    parts = []
    with LiveProcesses(tmp_path, tick_s=0.25) as ring:
        ring.start_supervisor()
        ring.start(HOLDER)
        for loop in range(5):
            name = f"{NEWCOMER}{loop}"
            ring.start(name)
            enough = rng.randrange(whole // 2)
            ring.until(lambda: written_bytes(ring.data(name)) > enough)  # noqa: B023
            ring.kill(name)
            parts.append(kept(ring.data(name), history))
            ring.restart(name)
            ring.until(lambda: ring.stored(name) == history.keys())  # noqa: B023
            ring.kill(name)
            assert kept(ring.data(name), history) == len(history)
    assert any(0 < part < len(history) for part in parts), parts
