"""Kills during publishing: acknowledged publications are on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

from skipring.core.publications import Publication
from skipring.lab.faults.processes import LiveProcesses
from skipring.lab.faults.requests import NO_SUPERVISOR, TOPIC, publication, publish_one, stranger
from skipring.storage.durable_mark import losses_of
from skipring.storage.store import PublicationStore

PROGRAM = Path(__file__).with_name("publisher.py")
NAME = "n00"
WRITERS = 4
LINES_MAX = 300  # printed before the kill
ACKNOWLEDGED_MAX = 150  # before the kill

repeated = pytest.mark.parametrize("loops", [15, pytest.param(200, marks=pytest.mark.slow)])


class Ledger:
    """The attempted and the acknowledged publications of all runs."""

    def __init__(self) -> None:
        self.tried: set[bytes] = set()  # payloads
        self.acknowledged: dict[bytes, bytes] = {}  # payloads by id

    def assert_kept(self, directory: Path) -> None:
        """Assert that all acknowledged publications are stored, only attempted ones, none twice."""
        with PublicationStore.open(directory) as store:
            stored = list(store.archive(TOPIC).publications())
            assert store.recovery.damage is None
            assert losses_of(store.archive(TOPIC).epoch) == 0
        payloads = {each.id: each.payload for each in stored}
        assert self.acknowledged.items() <= payloads.items()
        assert self.tried.issuperset(payloads.values())
        assert len(stored) == len(payloads) == len(set(payloads.values()))

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
            for made in publications(ledger):
                key = await publish_one(outsider, place, made)
                ledger.acknowledged[key] = made.payload or b""
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


def publications(ledger: Ledger) -> Iterator[Publication]:
    """Yield unique publications, each recorded as attempted."""
    for _ in count():
        payload = b"%d" % len(ledger.tried)
        ledger.tried.add(payload)
        yield publication(payload)
