"""The story of the demo as values: a ring stands, is damaged three times and heals each time.

Scenes come one by one, since the next round is run only when somebody asks for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from skipring.core.config import Mode
from skipring.core.peers import NodeId
from skipring.demo.picture import Portrait, portray
from skipring.sim.incidents import CrashWave, SupervisorRestart
from skipring.sim.run import Counters, Simulation
from skipring.sim.scenario import make_scenario
from skipring.world.legitimacy import Layer, census, explicit_state
from skipring.world.snapshot import Snapshot

QUIET_ROUNDS: Final = 200  # Long enough to count requests, which are rare in a quiet ring.
CLOSURE_ROUNDS: Final = 20
CRASH_SHARE: Final = 1 / 4
PUBLICATIONS: Final = 24
DETECTOR_DELAY: Final = 3  # Our guess at what a failure detector needs.
PAPER_N: Final = 32
PAPER_ADVERSARY: Final = "A12"  # Milder than A15: all is right but the shortcuts.


class Plan(Struct, frozen=True):
    """What decides a telling of the story."""

    n: int = 16
    seed: int = 0
    max_rounds: int = 300
    paper_rounds: int = 300  # in which the literal pseudocode may show what it can do


class Chapter(Struct, frozen=True):
    """The heading of a part of the story."""

    number: int
    title: str
    text: str


class Figures(Struct, frozen=True):
    """What a ring has and costs while nothing is wrong."""

    members: int
    average_degree: float
    diameter: int
    messages: float  # per node and round
    requests: float  # per round


class RingStands(Struct, frozen=True):
    """The ring as it should be."""

    portrait: Portrait
    figures: Figures


class Unrolled(Struct, frozen=True):
    """The same ring with its shortcuts, and how it came to be."""

    portrait: Portrait
    formed: Outcome


class Frame(Struct, frozen=True):
    """The topic after a round; round 0 is the damage."""

    chapter: Chapter
    round: int
    portrait: Portrait
    wrong: Mapping[Layer, int]
    history: tuple[int, ...]  # how many things were wrong in each round up to this one
    messages: float  # per node, in this chapter
    requests: int

    @property
    def is_healed(self) -> bool:
        """True if nothing is wrong."""
        return self.history[-1] == 0


class Outcome(Struct, frozen=True, kw_only=True):
    """How a chapter ended."""

    chapter: Chapter
    rounds: int
    is_healed: bool
    is_closed: bool  # nothing changed any more in the rounds after
    wrong: Mapping[Layer, int]
    messages: float  # per node
    requests: int


class Comparison(Struct, frozen=True):
    """The same damage under the paper's pseudocode and under our rules."""

    paper: Outcome
    ours: Outcome


class End(Struct, frozen=True):
    """All chapters at a glance."""

    figures: Figures
    formed: Outcome
    healed: tuple[Outcome, ...]
    comparison: Comparison

    @property
    def is_good(self) -> bool:
        """True if every chapter that should heal did, and stayed so."""
        parts = (self.formed, *self.healed, self.comparison.ours)
        return all(part.is_healed and part.is_closed for part in parts)


Scene: TypeAlias = Plan | Chapter | RingStands | Unrolled | Frame | Outcome | Comparison | End

STANDS: Final = Chapter(
    1,
    "The ring as it should be",
    "Each subscriber has a label from the supervisor: its place on the circle (01 is a quarter "
    "round, 1 is half). It knows its two neighbours and a few shortcuts.",
)
SCRAMBLED: Final = Chapter(
    2,
    "Everything is scrambled",
    "Labels, neighbours, shortcuts, the supervisor's database and the messages on their way: all "
    f"replaced by nonsense, and each of {PUBLICATIONS} publications is with a few at most. "
    "Nobody is told. Everybody just carries on.",
)
FORGOTTEN: Final = Chapter(
    3,
    "The supervisor forgets everyone",
    "It restarts with an empty database while the ring runs on. Until it has recorded a "
    "subscriber again, that one's label counts as wrong.",
)
CRASHED: Final = Chapter(
    4,
    "A quarter crashes",
    "They vanish without a word; their labels must go to others and the gaps be closed. The "
    f"failure detector takes {DETECTOR_DELAY} rounds to notice.",
)
RULES: Final = Chapter(
    5,
    "Why the rules exist",
    "skipring follows a paper, with some rules added to its pseudocode. What are they for? "
    f"{PAPER_N} subscribers, all right but for stale shortcuts, with and without them.",
)


def tell(plan: Plan) -> Iterator[Scene]:
    """Tell the story, scene by scene."""
    yield plan
    yield STANDS
    ring = _simulation(plan)
    formed = _run_quietly(STANDS, ring)
    figures = _figures(ring)
    yield RingStands(portray(ring.world), figures)
    yield Unrolled(portray(ring.world), formed)
    healed = []
    damaged = _simulation(
        plan, adversary="A15", detector_delay=DETECTOR_DELAY, publications=PUBLICATIONS
    )
    for chapter in (SCRAMBLED, FORGOTTEN, CRASHED):
        yield chapter
        _damage(chapter, damaged)
        for scene in _heal(chapter, damaged, plan.max_rounds):
            yield scene
            if isinstance(scene, Outcome):
                healed.append(scene)
    yield RULES
    comparison = _compare(plan)
    yield comparison
    yield End(figures, formed, tuple(healed), comparison)


def _simulation(plan: Plan, **values: object) -> Simulation:
    given = {
        "n": plan.n,
        "seed": plan.seed,
        "max_rounds": plan.max_rounds,
        "closure": CLOSURE_ROUNDS,
    }
    return Simulation(make_scenario({**given, **values}))


def _damage(chapter: Chapter, simulation: Simulation) -> None:
    """Let happen what a chapter is about; a scrambled world comes as it is."""
    now = (simulation.world.round,)
    if chapter is FORGOTTEN:
        SupervisorRestart(now).strike(simulation.world)
    elif chapter is CRASHED:
        CrashWave(now, CRASH_SHARE).strike(simulation.world)


# --- healing ---------------------------------------------------------------------------


def _heal(chapter: Chapter, simulation: Simulation, rounds_max: int) -> Iterator[Scene]:
    """Run until nothing is wrong: a frame for each round, then the outcome."""
    world = simulation.world
    begin, before, members = world.round, Counters.of(world), len(world.subscribers)
    history: list[int] = []
    while True:
        wrong = census(world)
        history.append(wrong.total())
        spent = Counters.of(world).since(before)
        frame = Frame(
            chapter=chapter,
            round=world.round - begin,
            portrait=portray(world),
            wrong=wrong,
            history=tuple(history),
            messages=spent.messages / members,
            requests=spent.supervisor_requests,
        )
        yield frame
        if frame.is_healed or frame.round >= rounds_max:
            break
        simulation.run_round()
    yield Outcome(
        chapter=chapter,
        rounds=frame.round,
        is_healed=frame.is_healed,
        is_closed=frame.is_healed and _is_closed(simulation),
        wrong=wrong,
        messages=frame.messages,
        requests=frame.requests,
    )


def _run_quietly(chapter: Chapter, simulation: Simulation) -> Outcome:
    """Run until nothing is wrong, for the outcome alone."""
    report = simulation.run()
    rounds = report.rounds_strict
    return Outcome(
        chapter=chapter,
        rounds=rounds if rounds is not None else simulation.scenario.max_rounds,
        is_healed=report.converged,
        is_closed=report.closure_ok is True,
        wrong=census(simulation.world),
        messages=report.messages / report.n,
        requests=report.supervisor_requests,
    )


def _is_closed(simulation: Simulation) -> bool:
    """True if the explicit state stays the same from now on, for some rounds."""
    before = explicit_state(simulation.world)
    for _ in range(CLOSURE_ROUNDS):
        simulation.run_round()
        if explicit_state(simulation.world) != before:
            return False
    return True


def _compare(plan: Plan) -> Comparison:
    """Run the same damage under the paper's pseudocode and under our rules."""
    outcomes = []
    for mode, max_rounds in ((Mode.PAPER, plan.paper_rounds), (Mode.FAST, plan.max_rounds)):
        values = {"n": PAPER_N, "adversary": PAPER_ADVERSARY, "mode": mode}
        simulation = _simulation(plan, **values, max_rounds=max_rounds)
        outcomes.append(_run_quietly(RULES, simulation))
    return Comparison(*outcomes)


# --- the quiet ring --------------------------------------------------------------------


def _figures(simulation: Simulation) -> Figures:
    """Measure a ring in which nothing is wrong."""
    world = simulation.world
    before = Counters.of(world)
    for _ in range(QUIET_ROUNDS):
        simulation.run_round()
    spent = Counters.of(world).since(before)
    knows = _adjacency(world.snapshot())
    members = len(knows)
    return Figures(
        members=members,
        average_degree=sum(map(len, knows.values())) / members,
        diameter=max(_farthest(node, knows) for node in knows),
        messages=spent.messages / QUIET_ROUNDS / members,
        requests=spent.supervisor_requests / QUIET_ROUNDS,
    )


def _adjacency(snapshot: Snapshot) -> dict[NodeId, set[NodeId]]:
    """Whom each subscriber has an edge with, its own or the other's."""
    knows: dict[NodeId, set[NodeId]] = {node: set() for node in snapshot.subscribers}
    for node, other in snapshot.explicit_edges():
        if other in knows and other != node:
            knows[node].add(other)
            knows[other].add(node)
    return knows


def _farthest(start: NodeId, knows: Mapping[NodeId, set[NodeId]]) -> int:
    """How many hops the farthest of those that can be reached is away."""
    hops = {start: 0}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for other in knows[node] - hops.keys():
            hops[other] = hops[node] + 1
            waiting.append(other)
    return max(hops.values())
