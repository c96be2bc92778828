"""States of a topic as a checker sees them, and events made of them."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from skipring.admin.inspector import Inspection
from skipring.core.batches import RecordBatch
from skipring.core.peers import NodeId
from skipring.lab.demo.script import STEPS, DemoFrame, DemoPlan, StepResult
from skipring.lab.demo.state import ClusterState, state_of
from skipring.world.adversaries import ADVERSARIES
from skipring.world.adversaries.builders import legitimate_world, made_publications
from skipring.world.snapshot import Snapshot
from tests.support.statuses import status_of

TOPIC = "news"
STEP = STEPS[2].filled(DemoPlan())


def published(count: int) -> list[RecordBatch]:
    return made_publications(TOPIC, count, ["shop"], Random(0))


def ring_with(n: int, stored: list[RecordBatch]) -> Snapshot:
    """Return a legitimate ring whose members have all of ``stored``."""
    world = legitimate_world(n, Random(0))
    states = {
        node: replace(state, publications=tuple(stored))
        for node, state in world.subscribers.items()
    }
    return replace(world, subscribers=states)


def seen(world: Snapshot, *, without: frozenset[NodeId] = frozenset()) -> Inspection:
    """Return an inspection; no reference leads to the nodes in ``without``."""
    states = {node: it for node, it in world.subscribers.items() if node not in without}
    return Inspection(
        snapshot=replace(world, subscribers=states),
        statuses={node: status_of(state) for node, state in states.items()},
    )


def checked(world: Snapshot, stored: list[RecordBatch]) -> ClusterState:
    nodes = sorted(world.subscribers)
    return state_of(seen(world), {}, nodes, [each.id for each in stored])


def scrambled_state(n: int = 16) -> ClusterState:
    return checked(ADVERSARIES["A17"].build(n, Random(1)), [])


def healthy_state(n: int = 16) -> ClusterState:
    return checked(ring_with(n, published(3)), published(3))


def frame(of: ClusterState, *history: int) -> DemoFrame:
    past = (*history, len(of.faults))
    return DemoFrame(step=STEP, seconds=1.5, rounds=6, state=of, history=past)


def result(*faults: str) -> StepResult:
    return StepResult(
        step=STEP, seconds=4.21, rounds=17, members=11, published=64, lost=0, faults=faults
    )
