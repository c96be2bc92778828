"""Loss of the supervisor, with or without its database: publishers and readers continue."""

from __future__ import annotations

import json
import time
from itertools import cycle
from pathlib import Path

import pytest

from faults.judge import Ledger
from faults.load import Load
from faults.processes import SUPERVISOR, LiveProcesses, numbered
from faults.requests import ANSWER_S, TOPIC, payloads_at
from skipring.world.snapshot import Snapshot

NODES = 8
READER = "reader"
PAUSE_S = 0.08  # of each of four publishers


def started(ring: LiveProcesses) -> Snapshot:
    """Start a ring and a reader, an ordinary ``skipring sub``; return the healthy ring."""
    ring.start_supervisor()
    ring.start(*numbered(NODES))
    whom = ["--supervisor", ring.running[SUPERVISOR].address]
    ring.run(READER, "sub", TOPIC, *whom)
    ring.until(lambda: len(ring.world().subscribers) == NODES)
    return ring.until_legitimate()


class StrictLoad:
    """Publishers through every node in turn; each publication goes to one node only."""

    def __init__(self, ring: LiveProcesses) -> None:
        self.ledger = Ledger()
        places = cycle([ring.place(name) for name in ring.nodes])
        self.load = Load(
            lambda: [next(places)], self.ledger, "strict", pause_s=PAUSE_S, answer_s=ANSWER_S
        )

    def acknowledged(self) -> set[bytes]:
        """Return all payloads; each was acknowledged by the node that it was sent to."""
        assert self.ledger.tried == self.ledger.acknowledged
        return self.ledger.acknowledged


def await_readers_copy(ring: LiveProcesses, acknowledged: set[bytes]) -> None:
    """Wait until the reader has printed all of these."""

    def missing() -> set[bytes]:
        return acknowledged - {json.loads(line)["payload"].encode() for line in ring.lines(READER)}

    ring.until(lambda: not missing(), lambda: f"the reader lacks {len(missing())}")


def await_news_at_the_reader(ring: LiveProcesses, publishing: StrictLoad) -> None:
    """Wait until the reader has printed later publications and all earlier ones."""
    already = publishing.load.acknowledged
    ring.until(lambda: publishing.load.acknowledged >= already + NODES)
    await_readers_copy(ring, set(publishing.ledger.acknowledged))


def await_copies_of_all(ring: LiveProcesses, acknowledged: set[bytes]) -> None:
    """Wait until every node has exactly these publications."""

    def wrong() -> list[str]:
        return [name for name in ring.nodes if set(payloads_at(ring.place(name))) != acknowledged]

    ring.until(lambda: not wrong(), lambda: f"{wrong()} do not have what was acknowledged")


def labels(seen: Snapshot) -> dict[str, str]:
    return {name: str(state.label) for name, state in seen.subscribers.items()}


@pytest.mark.heavy
@pytest.mark.parametrize("away_s", [4.0, pytest.param(20.0, marks=pytest.mark.slow)])
def test_publications_reach_every_node_without_supervisor(tmp_path: Path, away_s: float) -> None:
    with LiveProcesses(tmp_path) as ring:
        before = started(ring)
        publishing = StrictLoad(ring)
        with publishing.load:
            ring.kill(SUPERVISOR)
            killed = time.monotonic()
            ring.until(lambda: time.monotonic() - killed > away_s)
        await_copies_of_all(ring, publishing.acknowledged())  # still without a supervisor
        await_readers_copy(ring, publishing.acknowledged())
        ring.restart(SUPERVISOR)
        assert labels(ring.until_legitimate()) == labels(before)
        assert ring.evicted() == []


@pytest.mark.heavy
def test_supervisor_that_lost_its_data_is_restored_by_the_ring_without_interruption(
    tmp_path: Path,
) -> None:
    with LiveProcesses(tmp_path) as ring:
        before = started(ring)
        publishing = StrictLoad(ring)
        with publishing.load:
            ring.kill(SUPERVISOR)
            ring.delete_data(SUPERVISOR)
            await_news_at_the_reader(ring, publishing)
            ring.restart(SUPERVISOR)
            rebuilt = ring.until_legitimate(with_publications=False)
            await_news_at_the_reader(ring, publishing)
        assert rebuilt.subscribers.keys() == before.subscribers.keys()
        ring.until_legitimate()
        await_copies_of_all(ring, publishing.acknowledged())
        await_readers_copy(ring, publishing.acknowledged())
