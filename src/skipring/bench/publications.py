"""How fast and how dear publications get to everybody (``skipring bench sim --publications``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from statistics import median
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.bench.markdown import header, row
from skipring.core.config import ProtocolConfig, Rule, Rules, Spread
from skipring.core.effects import Origin
from skipring.core.labels import LABEL_BITS
from skipring.core.messages import (
    CheckAndPublish,
    CheckTrie,
    IHave,
    Message,
    Publications,
    PublishMany,
    PublishNew,
    TrieEqual,
    Want,
)
from skipring.core.peers import NodeId
from skipring.core.publications import Publication
from skipring.core.topology import levels
from skipring.sim.engine import World
from skipring.sim.faults import DELIVERED, LOST, Verdict
from skipring.sim.incidents import Churn, Detector, Incident
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import ADVERSARIES, legitimate_world
from skipring.world.adversaries.building import made_publications, with_states
from skipring.world.legitimacy import has_all_publications, is_strictly_legitimate
from skipring.world.snapshot import Parcel, Snapshot

SPREADING: Final[frozenset[type[Message]]] = frozenset({PublishNew, PublishMany, IHave, Want})
REPAIRING: Final[frozenset[type[Message]]] = frozenset(
    {CheckTrie, CheckAndPublish, Publications, TrieEqual}
)

ROUNDS_MAX: Final = 2000  # more than any repair takes; a loop must end


def tables() -> Iterator[str]:
    """Yield the lines of all tables, in Markdown."""
    yield from repair_table()
    yield ""
    yield from spreading_table()
    yield ""
    yield from healing_table()
    yield ""
    yield from silence_table()


# -- repair alone (section 4.2) ------------------------------------------------------------------

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
        if len({machine.trie.root for machine in world.subscribers.values()}) == 1:
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


# -- spreading (section 4.3) ---------------------------------------------------------------------

SPREADING_SIZE: Final = 256
PER_INTERVAL: Final = 5  # publications
FLUSHES: Final = 10  # in an interval
DETECTOR_DELAY: Final = 3  # intervals
HEALING_INTERVALS_MAX: Final = 200
REPAIRED_INTERVALS: Final = 40  # fewer will do where nothing is counted by the percent


class Weather(Struct, frozen=True):
    """What befalls the ring while publications spread."""

    title: str
    adversary: str | None = None  # None is a legitimate ring; else until it has healed
    churn: float = 0.0
    intervals: int = 40  # with publications, unless it heals
    seeds: int = 1


WEATHERS: Final = (
    Weather("calm"),
    Weather("churn 0.0001", churn=1e-4, intervals=200),
    Weather("churn 0.001", churn=1e-3, intervals=100),
    Weather("churn 0.01", churn=1e-2, intervals=100),
    Weather("healing from A05", adversary="A05", seeds=5),
    Weather("healing from A15", adversary="A15", seeds=5),
)


class Reach(Struct):
    """How far publications have come before any repair."""

    publications: int = 0
    complete: int = 0  # of the publications, those that have reached all
    pairs: int = 0  # of a publication and a member other than its publisher
    reached: int = 0

    @property
    def share(self) -> float:
        """The share of the pairs that were reached."""
        return self.reached / self.pairs if self.pairs else 1.0

    @property
    def complete_share(self) -> float:
        """The share of the publications that have reached all."""
        return self.complete / self.publications if self.publications else 1.0

    def note(self, reached: int, members: int) -> None:
        """One publication has come to so many of the members."""
        self.publications += 1
        self.complete += reached == members
        self.pairs += members
        self.reached += reached

    def add(self, other: Reach) -> None:
        """Take in what another run has found."""
        self.publications += other.publications
        self.complete += other.complete
        self.pairs += other.pairs
        self.reached += other.reached


class Network:
    """A world on the time scale of a network: a hop in 1 ms, a Flush in 100 ms, a tick a second.

    So a publication has gone round before the ring's next messages arrive. Chance is drawn apart
    for what spreads: without repairs the same befalls the ring, however publications spread.
    """

    def __init__(self, world: World, incidents: Sequence[Incident], rng: Random) -> None:
        self.world = world
        self.reach = Reach()
        self._rng = rng
        self._incidents = tuple(incidents)
        self._scheduler = RandomOrder()

    def members(self) -> list[NodeId]:
        """Who wants to be a member and has a place: all others can be neither found nor asked."""
        machines = self.world.subscribers.items()
        return sorted(
            node for node, machine in machines if machine.wants and machine.label is not None
        )

    def run_interval(self, publications: int) -> None:
        """Let incidents strike and the ring act; then publish, and let it spread."""
        world = self.world
        world.begin_round()
        for incident in self._incidents:
            incident.strike(world)
        spreading = [parcel for parcel in world.channels if type(parcel.message) in SPREADING]
        world.channels[:] = [p for p in world.channels if type(p.message) not in SPREADING]
        self._scheduler.run_round(world)
        waiting = list(world.channels)
        world.channels[:] = spreading
        members = self.members()
        count = publications if members else 0
        published = [self._publish(members, number) for number in range(count)]
        self._deliver_all()
        for _ in range(FLUSHES):
            if not self._flush():
                break
            self._deliver_all()
        world.channels.extend(waiting)
        world.end_round()
        for publisher, key in published:
            self._judge(publisher, key, members)

    def _publish(self, members: Sequence[NodeId], number: int) -> tuple[NodeId, bytes]:
        node = self._rng.choice(members)
        self.world.publish(node, f"{self.world.round} {number}".encode())
        archive = self.world.subscribers[node].archive
        publication = archive.read(archive.end - 1)
        assert publication is not None
        return node, publication.id

    def _deliver_all(self) -> None:
        """Deliver what spreads, hop by hop, until nothing is on its way."""
        world = self.world
        for _ in range(len(world.subscribers) + len(SPREADING)):  # no way is longer
            wave = list(world.channels)
            world.channels.clear()
            self._rng.shuffle(wave)
            for parcel in wave:
                world.deliver(parcel)
        assert not world.channels

    def _flush(self) -> bool:
        """Let everybody say what was put off; False if there was nothing."""
        nodes = [node for node, machine in self.world.subscribers.items() if machine.has_to_flush]
        for node in nodes:
            self.world.flush(node)
        return bool(nodes)

    def _judge(self, publisher: NodeId, key: bytes, members: Sequence[NodeId]) -> None:
        machines = self.world.subscribers
        others = [node for node in members if node != publisher]
        self.reach.note(sum(key in machines[node].trie for node in others), len(others))


class Spreadings(Struct):
    """What spreading has reached and cost, over some runs."""

    reach: Reach
    deliveries: int = 0
    sent: int = 0
    duplicates: int = 0
    about_ids: int = 0
    hops: int = 0
    hops_max: int = 0

    def take(self, network: Network) -> None:
        """Add up one run."""
        world = network.world
        deliveries = world.deliveries
        self.reach.add(network.reach)
        self.deliveries += deliveries.by_origin[Origin.SPREAD]
        self.sent += world.sent[PublishNew]
        self.duplicates += deliveries.duplicates
        self.about_ids += world.sent[IHave] + world.sent[Want]
        self.hops += sum(hops * count for hops, count in deliveries.hops.items())
        self.hops_max = max(self.hops_max, deliveries.hops_max)

    def cells(self) -> list[str]:
        """What the table says."""
        each = max(self.deliveries, 1)
        return [
            str(self.reach.publications),
            f"{100 * self.reach.share:.2f} %",
            f"{100 * self.reach.complete_share:.1f} %",
            f"{self.sent / each:.2f}",
            f"{self.duplicates / each:.2f}",
            f"{self.about_ids / each:.2f}",
            f"{self.hops / each:.1f}, {self.hops_max}",
        ]


def network(weather: Weather, n: int, config: ProtocolConfig, *, seed: int) -> Network:
    """A ring in some weather; where the weather lasts, it already has lasted for a while."""
    code = weather.adversary
    if code is None:
        start = legitimate_world(n, Random(f"weather/{seed}"))
    else:
        start = ADVERSARIES[code].build(n, Random(f"{code}/{seed}"))
    warm_up = 2 * levels(n) + config.calm_ticks if code is None else 0
    churn = Churn(weather.churn, warm_up + weather.intervals)
    made = Network(
        World(start, seed=seed, config=config),
        (churn, Detector(DETECTOR_DELAY)),
        Random(f"spreading/{seed}"),
    )
    for _ in range(warm_up):
        made.run_interval(0)
    return made


def spread(weather: Weather, n: int, config: ProtocolConfig, *, seed: int) -> Network:
    """Publish in every interval of some weather."""
    running = network(weather, n, config, seed=seed)
    is_healing = weather.adversary is not None
    for _ in range(HEALING_INTERVALS_MAX if is_healing else weather.intervals):
        if is_healing and is_strictly_legitimate(running.world):
            break
        running.run_interval(PER_INTERVAL)
    return running


def spreading_table(
    n: int = SPREADING_SIZE, weathers: Sequence[Weather] = WEATHERS
) -> Iterator[str]:
    """How far spreading alone brings publications, and what that costs."""
    yield f"Spreading alone, n = {n}; a hop takes 1 ms, a Flush 100 ms, a tick 1 s; {PER_INTERVAL}"
    yield f"publications a tick. Churn per node and tick, suspected {DETECTOR_DELAY} ticks later."
    yield "Reached of the members with a label: pairs of a publication and a member, and"
    yield "publications that have come to all. Messages and duplicates are per delivery."
    yield ""
    columns = ["published", "reached", "by all", "data", "duplicates", "ids", "hops: mean, most"]
    yield from header("weather", ["spread", *columns])
    for weather in weathers:
        for way in (Spread.FLOOD, Spread.TREE, Spread.ADAPTIVE):
            config = ProtocolConfig(spread=way, repairs=False)
            found = Spreadings(Reach())
            for seed in range(weather.seeds):
                found.take(spread(weather, n, config, seed=seed))
            yield row(weather.title, [way, *found.cells()])


def healing_table(n: int = SPREADING_SIZE, weathers: Sequence[Weather] = WEATHERS) -> Iterator[str]:
    """That everybody has everything in the end, once tries are compared too."""
    yield f"The same with repair, n = {n}, spread `{ProtocolConfig().spread}`: ticks from the last"
    yield "publication until all members have all."
    yield ""
    yield from header("weather", ["published", "by spreading", "by repair", "ticks until all"])
    for weather in weathers:
        shorter = replace(weather, intervals=min(weather.intervals, REPAIRED_INTERVALS))
        running = spread(shorter, n, ProtocolConfig(), seed=0)
        ticks = settle(running)
        origins = running.world.deliveries.by_origin
        cells = [origins[Origin.OWN], origins[Origin.SPREAD], origins[Origin.REPAIR]]
        yield row(weather.title, [*map(str, cells), str(ticks) if ticks is not None else "never"])


def settle(running: Network) -> int | None:
    """Let intervals pass without publications until all have all; how many, or None."""
    for ticks in range(ROUNDS_MAX):
        if has_all_publications(running.world):
            return ticks
        running.run_interval(0)
    return None


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
