"""How far spreading alone brings publications (section 4.3), and what that costs.

Part of ``skipring bench sim --publications``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig, Spread
from skipring.core.effects import Origin
from skipring.core.messages import IHave, Message, PublishMany, PublishNew, Want
from skipring.core.peers import NodeId
from skipring.core.topology import levels
from skipring.lab.bench.markdown import header, row
from skipring.sim.engine import World
from skipring.sim.process_faults import Churn, Incident, OracleDetector
from skipring.sim.schedulers import RandomOrder
from skipring.world.adversaries import ADVERSARIES, legitimate_world
from skipring.world.legitimacy import has_all_publications, is_strictly_legitimate

SPREADING: Final[frozenset[type[Message]]] = frozenset({PublishNew, PublishMany, IHave, Want})
ROUNDS_MAX: Final = 2000  # more than any repair takes; a loop must end

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
        self.reach.note(sum(key in machines[node].index() for node in others), len(others))


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
        (churn, OracleDetector(DETECTOR_DELAY)),
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
