"""Batches of several records: convergence, crashes while publishing, and atomicity."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, product
from random import Random
from typing import Any

import pytest

from skipring.core.batches import RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Deliver, Origin
from skipring.core.peers import NodeId
from skipring.sim.engine import DeliveryStats, World
from skipring.sim.network_faults import Loss
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import ADVERSARIES, scatter
from skipring.world.legitimacy import has_all_publications
from tests.support.batches import payloads_of
from tests.support.conversations import standing_ring
from tests.support.runs import replay

# Wrong databases, rings and channels, and all states with publications.
SOME = ("A05", "A13", "A15", "A19", "A47", "A64", "A66")
# All others, except those with a charter, which is a batch of one record (A50 to A57).
OTHERS = [code for code in ADVERSARIES if code not in SOME and not code.startswith("A5")]
every_batch = pytest.mark.parametrize("batch", [1, 2, 256])


@pytest.mark.parametrize(
    ("adversary", "batch"),
    [
        *product(SOME, (1, 2, 256)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in product(OTHERS, (2, 256))),
    ],
)
def test_ring_converges_with_batches_of_any_size_and_live_settings(
    adversary: str, batch: int
) -> None:
    values: dict[str, Any] = {
        "config": "live",
        "n": 8,
        "adversary": adversary,
        "batch": batch,
        "publications": 6,
        "publish": {"rounds": 3, "per_round": 2},
        "max_rounds": 150,
        "closure": 5,
    }
    simulation = Simulation(make_scenario(values))
    report = simulation.run()
    assert report.is_good, f"{replay(**values)}\n{report.violations}"
    machines = [machine for machine in simulation.world.subscribers.values() if machine.wants]
    held = [Counter(payloads_of(machine.batches())) for machine in machines]
    assert all(payloads == held[0] for payloads in held)
    assert {each.count for machine in machines for each in machine.batches()} == {batch}
    assert held[0].total() == batch * len(machines[0].batches())


# -- crash between sending and storing ---------------------------------------------------------


class Crashes:
    """Ring whose members crash between sending and storing a batch, and restart with their log."""

    def __init__(self, seed: int, batch: int) -> None:
        self.world = World(standing_ring(6), seed=seed, config=ProtocolConfig.live())
        self.stored: dict[bytes, RecordBatch] = {}
        self._rng = Random(f"crashes/{seed}")
        self._batch = batch
        self._count = 0

    def payloads(self) -> list[bytes]:
        """Return the payloads of the next batch."""
        self._count += 1
        return [f"{self._count}/{index}".encode() for index in range(self._batch)]

    def step(self) -> None:
        """Let a member publish, and another one publish, crash and restart."""
        publisher, victim = self._rng.sample(sorted(self.world.subscribers), 2)
        self.world.publish(publisher, *self.payloads())
        for machine in self.world.subscribers.values():
            self.stored |= {each.id: each for each in machine.batches()}
        self._crash(victim)
        run_rounds(self.world, RandomOrder(), self._rng.randrange(3))

    def _crash(self, node: NodeId) -> None:
        world = self.world
        log = world.subscribers[node].batches()
        before = len(world.channels)
        world.publish_and_crash(node, *self.payloads())
        sent = world.channels[before:]
        world.channels[before:] = self._rng.sample(sent, self._rng.randint(0, len(sent)))
        world.restart(node, log, incarnation=self._count)


@every_batch
@pytest.mark.parametrize("seed", range(3))
def test_crash_between_sending_and_storing_loses_nothing_stored_and_reuses_no_number(
    seed: int, batch: int
) -> None:
    crashes = Crashes(seed, batch)
    for _ in range(8):
        crashes.step()
    run_rounds(crashes.world, RandomOrder(), 60)
    assert has_all_publications(crashes.world)
    held = [machine.batches() for machine in crashes.world.subscribers.values()]
    ids = [{each.id for each in publications} for publications in held]
    assert all(each == ids[0] >= crashes.stored.keys() for each in ids)
    assert len(ids[0]) > 8  # some batches survive that their publisher has not stored
    numbers = Counter(
        (each.publisher, number) for each in held[0] for number in range(each.first, each.end)
    )
    assert numbers.total() == batch * len(ids[0])
    assert set(numbers.values()) == {1}


# -- atomicity ---------------------------------------------------------------------------------


class Recorder(DeliveryStats):
    """Counters of deliveries that also record each delivery."""

    def __init__(self) -> None:
        super().__init__()
        self.effects: list[Deliver] = []

    def on_delivered(self, delivery: Deliver) -> None:
        """Record a delivery."""
        super().on_delivered(delivery)
        self.effects.append(delivery)


class Recorded(World):
    """World that records each delivery."""

    def __init__(self, batch: int) -> None:
        start = scatter(standing_ring(8), 12, Random(0), batch=batch)
        super().__init__(start, seed=0, config=ProtocolConfig.live(), faults=[Loss(0.2)])
        self.deliveries = self.recorder = Recorder()


@every_batch
def test_batch_is_delivered_whole_on_every_route(batch: int) -> None:
    world = Recorded(batch)
    for number in range(12):
        node = sorted(world.subscribers)[number % 8]
        world.publish(node, *(f"{number}/{index}".encode() for index in range(batch)))
        run_rounds(world, RandomOrder(), 1)
    world.subscribe("newcomer")
    run_rounds(world, RandomOrder(), 60)
    assert {each.origin for each in world.recorder.effects} == set(Origin)
    for each in world.recorder.effects:
        assert [given.records() for given in each.batches] == list(each.records)
        assert {len(records) for records in each.records} == {batch}
    for machine in world.subscribers.values():
        assert len(machine.batches()) == 24
        ends = accumulate(each.count for each in machine.batches())
        assert [entry.end for entry in machine.replica.log.read_range(0, 10**6)] == list(ends)
