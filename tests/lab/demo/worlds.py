"""Worlds as somebody sees them who looks at a live topic, and scenes made of them."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from skipring.admin.inspector import Inspection
from skipring.core.peers import NodeId
from skipring.core.publications import Publication
from skipring.lab.demo.sight import Sight, sight_of
from skipring.lab.demo.story import KILLING, DemoFrame, DemoPlan, StepResult, titled
from skipring.world.adversaries import ADVERSARIES
from skipring.world.adversaries.builders import legitimate_world, made_publications
from skipring.world.snapshot import Snapshot
from tests.support.statuses import status_of

TOPIC = "news"
CHAPTER = titled(KILLING, DemoPlan())


def published(count: int) -> list[Publication]:
    return made_publications(TOPIC, count, ["shop"], Random(0))


def ring_with(n: int, stored: list[Publication]) -> Snapshot:
    """A legitimate ring in which everybody has all of this."""
    world = legitimate_world(n, Random(0))
    states = {
        node: replace(state, publications=tuple(stored))
        for node, state in world.subscribers.items()
    }
    return replace(world, subscribers=states)


def seen(world: Snapshot, *, without: frozenset[NodeId] = frozenset()) -> Inspection:
    """What an inspector finds, if no reference leads to some."""
    states = {node: it for node, it in world.subscribers.items() if node not in without}
    return Inspection(
        snapshot=replace(world, subscribers=states),
        statuses={node: status_of(state) for node, state in states.items()},
    )


def sight(world: Snapshot, stored: list[Publication]) -> Sight:
    nodes = sorted(world.subscribers)
    return sight_of(seen(world), {}, nodes, [each.id for each in stored])


def scrambled_sight(n: int = 16) -> Sight:
    return sight(ADVERSARIES["A17"].build(n, Random(1)), [])


def whole_sight(n: int = 16) -> Sight:
    return sight(ring_with(n, published(3)), published(3))


def frame(of: Sight, *history: int) -> DemoFrame:
    past = (*history, len(of.faults))
    return DemoFrame(chapter=CHAPTER, seconds=1.5, rounds=6, sight=of, history=past)


def outcome(*faults: str) -> StepResult:
    return StepResult(
        chapter=CHAPTER,
        seconds=4.21,
        rounds=17,
        members=11,
        published=64,
        lost=0,
        faults=faults,
    )
