"""Kills during publishing: acknowledged publications are on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

from faults.processes import SUPERVISOR, LiveProcesses
from faults.requests import (
    NO_SUPERVISOR,
    TOPIC,
    batch_of,
    batches_at,
    publish_one,
    stranger,
)
from skipring.core.batches import RecordBatch
from skipring.core.publications import Publication
from skipring.storage.store import LogStore

PROGRAM = Path(__file__).with_name("publisher.py")
PUBLISHER = "publisher"  # the name of the program
NAME = "n00"
WRITERS = 4
LINES_MAX = 300  # printed before the kill
ACKNOWLEDGED_MAX = 150  # before the kill
WRITE_S = 0.05  # so that most kills are between send and write

repeated = pytest.mark.parametrize("loops", [15, pytest.param(200, marks=pytest.mark.slow)])


def publications_of(batches: Iterable[RecordBatch]) -> list[Publication]:
    return [publication for batch in batches for publication in batch.publications()]


def stored_in(directory: Path) -> tuple[int, list[Publication]]:
    """Return the epoch and the publications of an intact store without gaps."""
    with LogStore.open(directory) as store:
        log = store.log(TOPIC)
        assert store.damage is None
        found = publications_of(entry.batch for entry in log.read_range(0, log.end))
        assert len(found) == log.records == log.end == log.durable_end
        return log.epoch, found


class Ledger:
    """The attempted and the acknowledged publications of all runs."""

    def __init__(self) -> None:
        self.tried: set[bytes] = set()  # payloads
        self.acknowledged: dict[bytes, bytes] = {}  # payloads by id
        self._epochs: set[int] = set()

    def assert_kept(self, directory: Path) -> None:
        """Assert that a store has lost nothing, and has all acknowledged publications."""
        epoch, stored = stored_in(directory)
        if stored:
            self._epochs.add(epoch)
        assert len(self._epochs) <= 1, "no epoch has ended"
        self.check(stored)

    def check(self, stored: list[Publication]) -> None:
        """Assert that all acknowledged publications are there, only attempted ones, none twice.

        No sequence number has been used twice.
        """
        payloads = {each.id: each.payload for each in stored}
        assert self.acknowledged.items() <= payloads.items()
        assert self.tried.issuperset(payloads.values())
        assert len(stored) == len(payloads) == len(set(payloads.values()))
        assert len({(each.publisher, each.seq) for each in stored}) == len(stored)

    def note(self, lines: list[str]) -> None:
        """Record the output of the program; a line cut off by the kill is missing."""
        for line in lines:
            verb, payload, *key = line.split()
            self.tried.add(payload.encode())
            if verb == "published":
                self.acknowledged[bytes.fromhex(key[0])] = payload.encode()


@pytest.mark.heavy
@repeated
def test_acknowledged_publications_survive_a_kill_and_nothing_else_is_stored(
    tmp_path: Path, loops: int
) -> None:
    rng = Random(loops)
    ledger = Ledger()
    url, directory = f"skipring://{NO_SUPERVISOR}", tmp_path / "data"
    with LiveProcesses(tmp_path) as processes:
        for loop in range(loops):
            processes.run("publisher", str(PROGRAM), url, str(directory), f"{loop}")
            processes.until_printed("publisher", rng.randrange(LINES_MAX))
            processes.kill("publisher")
            ledger.note(processes.lines("publisher"))
            if directory.exists():
                ledger.assert_kept(directory)
    assert ledger.acknowledged


@pytest.mark.heavy
@pytest.mark.parametrize("loops", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_kill_between_send_and_sync_reuses_no_number_and_loses_nothing_acknowledged(
    tmp_path: Path, loops: int
) -> None:
    rng, ledger = Random(loops), Ledger()
    spread_only = 0  # publications that others had, and the disk of the publisher not
    with LiveProcesses(tmp_path, tick_s=0.2) as ring:
        ring.start_supervisor()
        ring.start("n00", "n01")
        url = f"skipring://{ring.running[SUPERVISOR].address}"
        directory = ring.data(PUBLISHER)
        for loop in range(loops):
            ring.run(PUBLISHER, str(PROGRAM), url, str(directory), f"{loop}", f"{WRITE_S}")
            ring.until_printed(PUBLISHER, 1 + rng.randrange(LINES_MAX // 3))
            ring.kill(PUBLISHER)
            ledger.note(ring.lines(PUBLISHER))
            own = {each.id for each in stored_in(directory)[1]} if directory.exists() else set()
            assert own >= ledger.acknowledged.keys()
            spread_only += len(ring.stored("n00") - own)
        ring.start(PUBLISHER)  # the ring gets what was on its disk only, and the reverse
        ring.until_legitimate()
        for name in ring.nodes:
            ledger.check(publications_of(batches_at(ring.place(name), contents=True)))
        ring.stop(*ring.nodes)
    assert ledger.acknowledged
    assert spread_only > 0, "no kill was between send and write"
    ledger.check(stored_in(directory)[1])


@pytest.mark.heavy
@repeated
def test_client_publications_once_acknowledged_survive_a_kill_and_nothing_else_is_stored(
    tmp_path: Path, loops: int
) -> None:
    rng = Random(loops)
    ledger = Ledger()
    with LiveProcesses(tmp_path) as processes:
        processes.start(NAME, supervisor=NO_SUPERVISOR)
        for _ in range(loops):
            asyncio.run(kill_while_publishing(processes, rng.randrange(ACKNOWLEDGED_MAX), ledger))
            ledger.assert_kept(processes.data(NAME))
            processes.restart(NAME)
    assert ledger.acknowledged


async def kill_while_publishing(processes: LiveProcesses, wanted: int, ledger: Ledger) -> None:
    """Publish through the node in parallel and kill it after ``wanted`` answers."""
    place = processes.place(NAME)
    enough = asyncio.Event()
    async with stranger() as outsider:

        async def write() -> None:
            for made, payloads in batches(ledger):
                ids = await publish_one(outsider, place, made)
                ledger.acknowledged.update(zip(ids, payloads, strict=True))
                if len(ledger.acknowledged) >= before + wanted:
                    enough.set()

        before = len(ledger.acknowledged)
        writers = [asyncio.create_task(write()) for _ in range(WRITERS)]
        async with asyncio.timeout(60):
            await enough.wait()
        processes.kill(NAME)
        for writer in writers:
            writer.cancel()
        await asyncio.wait(writers)


def batches(ledger: Ledger) -> Iterator[tuple[RecordBatch, list[bytes]]]:
    """Yield batches of 1 to 3 unique payloads, each recorded as attempted."""
    for number in count():
        payloads = [b"%d" % (len(ledger.tried) + place) for place in range(1 + number % 3)]
        ledger.tried.update(payloads)
        yield batch_of(*payloads), payloads
