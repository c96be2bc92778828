"""Builders for conversations: values written as text, machines to talk to, rings that stand."""

from collections.abc import Iterable, Iterator, Sequence
from random import Random

from skipring.core.config import Mode, ProtocolConfig, Rule, Rules
from skipring.core.effects import Effect, Send
from skipring.core.events import Received, Tick
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckLabel,
    Digest,
    GetConfiguration,
    Introduce,
    Message,
    SetConfiguration,
)
from skipring.core.peers import SUPERVISOR, NodeId, Peer
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.subscriber import Subscriber
from skipring.core.supervisor import Supervisor
from skipring.core.topology import legitimate_states
from skipring.sim.engine import World
from skipring.sim.run import Simulation
from skipring.sim.scenario import Scenario
from skipring.world.adversaries.building import database_of, node_names, world_of
from skipring.world.legitimacy import Layer, census
from skipring.world.snapshot import Parcel, Snapshot


class Luck(Random):
    """Chance on demand: every draw is in favour of asking the supervisor, or none is."""

    def __init__(self, *, asks: bool = False) -> None:
        super().__init__(0)
        self.asks = asks

    def getrandbits(self, k: int, /) -> int:
        return 0 if self.asks else (1 << k) - 1

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return 0 if self.asks else start - 1


# -- values as text --------------------------------------------------------------------------


def at(text: str) -> Peer:
    """The peer written as node@label: ``b@01``."""
    node, _, bits = text.partition("@")
    return Peer(Label.parse(bits), node)


def peer_or_none(text: str) -> Peer | None:
    """The peer written as node@label, or none, written as a dash."""
    return None if text == "-" else at(text)


def place(pred: str, bits: str, succ: str) -> SetConfiguration:
    """The configuration of somebody between two peers written as text."""
    return SetConfiguration(peer_or_none(pred), Label.parse(bits), peer_or_none(succ))


def text_of(value: Peer | Label | None) -> str:
    """A value as transcripts write it."""
    match value:
        case None:
            return "-"
        case Peer():
            return f"{value.node}@{value.label}"
        case Label():
            return value.bits


def sentence(message: Message) -> str:
    """A message as transcripts write it."""
    name = type(message).__name__
    match message:
        case SetConfiguration(pred, label, succ):
            return f"{name} pred={text_of(pred)} label={text_of(label)} succ={text_of(succ)}"
        case CheckLabel(sender, believed, link):
            return f"{name} {text_of(sender)} believes {text_of(believed)} {link.value}"
        case Introduce(peer, link, first_hand):
            origin = "first-hand" if first_hand else "hearsay"
            return f"{name} {text_of(peer)} {link.value} {origin}"
        case Digest(node, digest):
            return f"{name} {node} {_shown(digest)}"
        case GetConfiguration(node, digest) if digest is not None:
            return f"{name} {node} {_shown(digest)}"
        case _:
            subject = message.peer if hasattr(message, "peer") else message.node
            return f"{name} {text_of(subject) if isinstance(subject, Peer) else subject}"


def _shown(digest: int) -> str:
    return f"{digest:016x}"[:8]  # enough to tell two apart


# -- machines --------------------------------------------------------------------------------


def config(mode: Mode = Mode.FAST, without: Iterable[Rule] = ()) -> ProtocolConfig:
    """The configuration of a mode, less some rules."""
    return ProtocolConfig(rules=Rules.of(mode, without))


def subscriber(
    node: NodeId,
    state: SubscriberState = SubscriberState(),  # noqa: B008 - a frozen value
    *,
    mode: Mode = Mode.FAST,
    without: Iterable[Rule] = (),
    asks: bool = False,
) -> Subscriber:
    """A subscriber in a given state that by chance asks the supervisor always or never."""
    machine = Subscriber(node, rng=Luck(asks=asks), config=config(mode, without))
    machine.load(state)
    return machine


def state_of(
    bits: str | None, *, left: str = "-", right: str = "-", ring: str = "-", **slots: NodeId | None
) -> SubscriberState:
    """The state of a subscriber; shortcuts are written as ``_01="b"``."""
    return SubscriberState(
        label=None if bits is None else Label.parse(bits),
        left=peer_or_none(left),
        right=peer_or_none(right),
        ring=peer_or_none(ring),
        shortcuts={Label.parse(slot.removeprefix("_")): node for slot, node in slots.items()},
    )


def supervisor(
    nodes: Sequence[NodeId] = (), *, mode: Mode = Mode.FAST, without: Iterable[Rule] = ()
) -> Supervisor:
    """A supervisor that has recorded these nodes, in this order."""
    return supervisor_with(database_of(nodes), mode=mode, without=without)


def supervisor_with(
    database: Iterable[tuple[str, NodeId | None]],
    *,
    mode: Mode = Mode.FAST,
    without: Iterable[Rule] = (),
    cursor: int = 0,
) -> Supervisor:
    """A supervisor with a database in the paper's form, not yet repaired."""
    machine = Supervisor(config=config(mode, without))
    machine.load(SupervisorState(database=tuple(database), next=cursor))
    return machine


def tick(machine: Subscriber | Supervisor) -> list[tuple[NodeId, Message]]:
    """Run a machine's Timeout; what it says, and to whom."""
    return said(machine.handle(Tick()))


def tell(
    machine: Subscriber | Supervisor, message: Message, sender: NodeId | None = None
) -> list[tuple[NodeId, Message]]:
    """Let a machine receive a message; what it says, and to whom."""
    return said(machine.handle(Received(message, sender)))


def said(effects: Iterable[Effect]) -> list[tuple[NodeId, Message]]:
    """The messages among some effects, each with its receiver."""
    return [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]


# -- worlds ----------------------------------------------------------------------------------


def standing_ring(nodes: int | Sequence[NodeId]) -> Snapshot:
    """SR(n): the node with the i-th name has the label l(i)."""
    names = node_names(nodes) if isinstance(nodes, int) else nodes
    return world_of(dict(legitimate_states(names)), names)


def simulation(start: Snapshot, **options: object) -> Simulation:
    """A simulation that starts in a given state."""
    return Simulation(Scenario(**options), start=start)


class Stage:
    """A world that obeys commands and writes down what is said.

    Messages are delivered first in, first out, and nobody asks the supervisor by chance unless
    told to.
    """

    def __init__(self) -> None:
        self._luck = Luck()
        self._set_up(Snapshot(subscribers={}), config())

    def _set_up(self, start: Snapshot, settings: ProtocolConfig) -> None:
        self._world = World(
            Snapshot(subscribers={}, supervisor=start.supervisor), seed=0, config=settings
        )
        self._world.rng = self._luck
        for node, state in start.subscribers.items():
            self._world.add(node, state)

    def obey(self, command: str) -> list[str]:
        """Carry out a command; what came of it, line by line."""
        name, *arguments = command.split()
        return list(getattr(self, f"_do_{name.replace('-', '_')}")(*arguments))

    # -- what there is to begin with; none of this is heard by anybody -----------------------

    def _do_mode(self, mode: str, *without: str) -> Iterator[str]:
        """``mode fast without R14``: from now on, for an empty world."""
        rules = [Rule(rule) for rule in without if rule != "without"]
        self._set_up(Snapshot(subscribers={}), config(Mode(mode), rules))
        yield from ()

    def _do_ring(self, *nodes: NodeId) -> Iterator[str]:
        """``ring a b c``: these are SR(n), in the order of their labels' indices."""
        self._set_up(standing_ring(nodes), self._world.config)
        self._world.roster.repair()
        yield from ()

    def _do_database(self, *entries: str) -> Iterator[str]:
        """``database a@0 b@1``: what the supervisor believes; without entries it is lost."""
        records = (entry.partition("@") for entry in entries)
        database = tuple((bits, node if node != "-" else None) for node, _, bits in records)
        self._world.supervisor.load(SupervisorState(database=database))
        yield from ()

    def _do_set(self, node: NodeId, *assignments: str) -> Iterator[str]:
        """``set a right=b@11``: a variable of a subscriber is corrupted."""
        machine = self._world.subscribers[node]
        fields = dict(assignment.split("=") for assignment in assignments)
        slots = {name: fields.pop(name) for name in list(fields) if name.strip("01") == ""}
        shortcuts = dict(machine.shortcuts) | {
            Label.parse(bits): None if holder == "-" else holder for bits, holder in slots.items()
        }
        edges = {name: getattr(machine, name) for name in ("left", "right", "ring")}
        edges |= {name: peer_or_none(text) for name, text in fields.items() if name != "label"}
        label = Label.parse(fields["label"]) if "label" in fields else machine.label
        machine.load(SubscriberState(label=label, shortcuts=shortcuts, **edges))
        yield from ()

    def _do_scramble(self, seed: str) -> Iterator[str]:
        """``scramble 7``: every subscriber's label and edges become arbitrary."""
        rng, world = Random(f"scramble/{seed}"), self._world
        nodes = sorted(world.subscribers)

        def reference() -> Peer | None:
            return Peer(Label.nth(rng.randrange(16)), rng.choice(nodes)) if rng.random() < 0.8 else None

        for node in nodes:
            world.subscribers[node].load(
                SubscriberState(
                    label=Label.nth(rng.randrange(16)),
                    left=reference(),
                    right=reference(),
                    ring=reference(),
                )
            )
        yield from self._do_show(*nodes)

    # -- what happens ------------------------------------------------------------------------

    def _do_subscribe(self, *nodes: NodeId) -> Iterator[str]:
        for node in nodes:
            self._world.subscribe(node)
        yield from self._news()

    def _do_unsubscribe(self, *nodes: NodeId) -> Iterator[str]:
        for node in nodes:
            self._world.unsubscribe(node)
        yield from self._news()

    def _do_tick(self, node: NodeId, *asking: str) -> Iterator[str]:
        """``tick a``, ``tick a asking``: Timeout, without or with the luck to ask."""
        self._luck.asks = bool(asking)
        self._world.tick(node)
        self._luck.asks = False
        yield from self._news()

    def _do_crash(self, node: NodeId) -> Iterator[str]:
        self._world.crash(node)
        yield from ()

    def _do_suspect(self, node: NodeId) -> Iterator[str]:
        """``suspect c``: the supervisor's failure detector holds c for crashed."""
        self._world.suspect(node)
        yield from self._news()

    def _do_deliver(self, *which: str) -> Iterator[str]:
        """``deliver``, ``deliver to a``: what is in flight now; answers are set in."""
        to = which[1] if which else None
        channels = self._world.channels
        now = [parcel for parcel in channels if to in (None, parcel.to)]
        channels[:] = [parcel for parcel in channels if to not in (None, parcel.to)]
        for parcel in now:
            yield _line(parcel) + (" (lost: it crashed)" if self._is_dead(parcel.to) else "")
            known = len(channels)
            self._world.deliver(parcel)
            yield from (f"    {_line(answer)}" for answer in channels[known:])

    def _is_dead(self, node: NodeId) -> bool:
        return node in self._world.crashed

    def _do_rounds(self, count: str) -> Iterator[str]:
        """``rounds 3``: all in flight is delivered, then everybody's Timeout, three times."""
        world = self._world
        for _ in range(int(count)):
            world.sent.clear()
            world.begin_round()
            now, world.channels[:] = list(world.channels), []
            for parcel in now:
                world.deliver(parcel)
            for node in sorted(world.processes(), key=lambda node: (node != SUPERVISOR, node)):
                world.tick(node)
            world.end_round()
            yield f"round {world.round}: {self._outlook()}"

    def _outlook(self) -> str:
        sent = sorted((kind.__name__, count) for kind, count in self._world.sent.items())
        said = ", ".join(f"{count} {name}" for name, count in sent)
        wrong = census(self._world)
        if not wrong:
            return f"{said}; legitimate"
        return f"{said}; wrong: {', '.join(f'{layer} {wrong[layer]}' for layer in Layer if wrong[layer])}"

    # -- what can be seen --------------------------------------------------------------------

    def _do_show(self, *nodes: NodeId) -> Iterator[str]:
        """``show``, ``show a supervisor``: the variables."""
        for node in nodes or self._world.processes():
            yield f"{node}: {self._variables(node)}"

    def _variables(self, node: NodeId) -> str:
        if node == SUPERVISOR:
            database = self._world.roster.database()
            return "database " + " ".join(f"{who or '-'}@{bits}" for bits, who in database)
        seen = self._world.subscribers[node]
        edges = f"left={text_of(seen.left)} right={text_of(seen.right)} ring={text_of(seen.ring)}"
        slots = "".join(f" {slot}={who or '-'}" for slot, who in sorted(seen.shortcuts.items()))
        return f"label={text_of(seen.label)} {edges}{slots}"

    def _news(self) -> Iterator[str]:
        """What has been said since the last look."""
        return iter(())


def _line(parcel: Parcel) -> str:
    return f"{parcel.sender} -> {parcel.to}  {sentence(parcel.message)}"
