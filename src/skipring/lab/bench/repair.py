"""How fast publications get to everybody by repair alone (section 4.2), and what silence costs.

Part of ``skipring bench sim --publications``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from statistics import median
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig, Rule, Rules, Spread
from skipring.core.labels import LABEL_BITS
from skipring.core.messages import CheckAndPublish, CheckTrie, Message, Publications, TrieEqual
from skipring.core.peers import NodeId
from skipring.core.publications import Publication
from skipring.core.topology import levels
from skipring.lab.bench.markdown import header, row
from skipring.lab.bench.spreading import ROUNDS_MAX, SPREADING
from skipring.sim.engine import World
from skipring.sim.network_faults import DELIVERED, LOST, Verdict
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import legitimate_world
from skipring.world.adversaries.builders import made_publications, with_states
from skipring.world.snapshot import Parcel, Snapshot

REPAIRING: Final[frozenset[type[Message]]] = frozenset(
    {CheckTrie, CheckAndPublish, Publications, TrieEqual}
)
REPAIR_SIZES: Final = (64, 256)
REPAIR_SEEDS: Final = 5
RING_SEEDS: Final = 3  # hundreds of rounds each
SCATTERED: Final = 60

ALWAYS_CALM: Final = -LABEL_BITS  # ticks: the ring has been as it is for long


def _repairs(*without: Rule, announced: bool = False) -> ProtocolConfig:
    """Repair without some rules; only an adaptive spread announces what has come by it."""
    return ProtocolConfig(
        rules=Rules.of(without=without),
        spread=Spread.ADAPTIVE if announced else Spread.FLOOD,
        calm_ticks=ALWAYS_CALM,
    )


REPAIRS: Final[Mapping[str, ProtocolConfig]] = {
    "ring alone, one by one": _repairs(Rule.REPAIR_OVER_SHORTCUTS, Rule.BATCH),
    "ring alone, batched": _repairs(Rule.REPAIR_OVER_SHORTCUTS),
    "R16, one by one": _repairs(Rule.BATCH),
    "R16, batched": _repairs(),
    "R16, batched, announced": _repairs(announced=True),
}

Placing = Callable[[int, int], Snapshot]


class Repair(Struct, frozen=True):
    """What it took until all members had all publications."""

    rounds: int
    messages: float  # about publications, a node


class OnlyPublications(Struct, frozen=True):
    """Loses all that is not about publications: in a legitimate ring it would change nothing."""

    def verdict(self, parcel: Parcel, now: int, rng: Random) -> Verdict:
        """Decide the fate of one message."""
        del now, rng
        return DELIVERED if type(parcel.message) in SPREADING | REPAIRING else LOST


def one_alone(n: int, seed: int) -> Snapshot:
    """A legitimate ring in which one member has a publication, and nobody any other."""
    return _one_more(n, seed, 0)


def one_new(n: int, seed: int) -> Snapshot:
    """A legitimate ring in which one member has one publication more than all others."""
    return _one_more(n, seed, SCATTERED)


def _one_more(n: int, seed: int, known_to_all: int) -> Snapshot:
    rng = Random(f"one new/{seed}")
    world = legitimate_world(n, rng)
    names = sorted(world.subscribers)
    *known, new = made_publications(world.topic, known_to_all + 1, names, rng)
    return _holding(world, {rng.choice(names): [new]}, known)


def scattered(n: int, seed: int) -> Snapshot:
    """A legitimate ring with publications of which each is at one member."""
    rng = Random(f"scattered/{seed}")
    world = legitimate_world(n, rng)
    names = sorted(world.subscribers)
    held: dict[NodeId, list[Publication]] = {}
    for publication in made_publications(world.topic, SCATTERED, names, rng):
        held.setdefault(rng.choice(names), []).append(publication)
    return _holding(world, held, [])


def _holding(
    world: Snapshot, held: Mapping[NodeId, Sequence[Publication]], known: Sequence[Publication]
) -> Snapshot:
    return with_states(
        world, lambda node, state: replace(state, publications=(*known, *held.get(node, ())))
    )


def repair(start: Snapshot, config: ProtocolConfig, *, seed: int) -> Repair:
    """Let tries be compared until they are equal; the ring is legitimate and stays so."""
    world = World(start, seed=seed, config=config, faults=(OnlyPublications(),))
    scheduler = RandomOrder()
    for _ in range(ROUNDS_MAX):
        if len({machine.index().root for machine in world.subscribers.values()}) == 1:
            break
        run_rounds(world, scheduler, 1)
    sent = sum(world.sent[kind] for kind in SPREADING | REPAIRING)
    return Repair(world.round, sent / len(world.subscribers))


def repair_table(sizes: Sequence[int] = REPAIR_SIZES, seeds: int = REPAIR_SEEDS) -> Iterator[str]:
    """Rounds until everybody has everything, when nothing is published."""
    placings: dict[str, Placing] = {
        "one at one node": one_alone,
        f"one new beside {SCATTERED}": one_new,
        f"{SCATTERED} scattered": scattered,
    }
    yield "Repair, nothing is published, legitimate ring: rounds until all members have all, median"
    yield f"and worst of {seeds} seeds / messages about publications per node (median). Tries are"
    yield f"compared in the ring alone ({min(seeds, RING_SEEDS)} of them) or over shortcuts too"
    yield "(R16); in the last column what has come by repair is announced to all neighbours."
    yield ""
    yield from header("publications", ["n", "2 log2 n", *REPAIRS])
    for title, place in placings.items():
        for n in sizes:
            cells = [_repair_cell(place, n, config, seeds) for config in REPAIRS.values()]
            yield row(title, [str(n), str(2 * levels(n)), *cells])


def _repair_cell(place: Placing, n: int, config: ProtocolConfig, seeds: int) -> str:
    count = seeds if config.rules.repair_over_shortcuts else min(seeds, RING_SEEDS)
    runs = [repair(place(n, seed), config, seed=seed) for seed in range(count)]
    rounds = [run.rounds for run in runs]
    return f"{median(rounds):.0f}, {max(rounds)} / {median(run.messages for run in runs):.0f}"


# -- silence -------------------------------------------------------------------------------------

SILENCE_SIZE: Final = 256
SILENCE_ROUNDS: Final = 200


def silence(n: int, rounds: int, *, seed: int) -> Mapping[type[Message], float]:
    """What is said about publications, a node and round, in a ring where all have all."""
    rng = Random(f"silence/{seed}")
    start = legitimate_world(n, rng)
    known = made_publications(start.topic, SCATTERED, sorted(start.subscribers), rng)
    world = World(_holding(start, {}, known), seed=seed, config=ProtocolConfig())
    run_rounds(world, RandomOrder(), rounds)
    return {
        kind: count / n / rounds
        for kind, count in world.sent.items()
        if kind in SPREADING | REPAIRING
    }


def silence_table(n: int = SILENCE_SIZE, rounds: int = SILENCE_ROUNDS) -> Iterator[str]:
    """What it costs to have nothing to say."""
    yield f"Legitimate ring, n = {n}, all have the same {SCATTERED} publications, {rounds} rounds:"
    yield "all messages about publications."
    yield ""
    yield from header("message", ["per node and round"])
    for kind, each in sorted(silence(n, rounds, seed=1).items(), key=lambda item: -item[1]):
        yield row(kind.__name__, [f"{each:.4f}"])
