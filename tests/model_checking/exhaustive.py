"""Exhaustive search of the states of a tiny ring, over the machines themselves (section 5).

For a finite set of states that is closed under steps, two questions have exact answers: does a step
lead out of legitimacy, and is there a state from which no legitimate state can be reached? If both
answers are no, every scheduler that gives each enabled step a chance reaches a legitimate state
with probability 1 and stays in legitimate states.

A process runs Timeout only while all channels are empty, and a channel is a set: copies of one
message count as one. A global state is one integer: a number for the state of each process, and
above them a bit for each message in flight. So a step, once computed for its process, is an
addition.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator
from itertools import product
from typing import Final, TypeAlias

from msgspec import Struct

from skipring.core.config import Mode, ProtocolConfig, Rule, Rules
from skipring.core.effects import Effect, Send
from skipring.core.events import Overwritten, Received, Tick
from skipring.core.labels import Label
from skipring.core.messages import Message
from skipring.core.peers import SUPERVISOR, NodeId, Peer
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.subscriber import Subscriber
from skipring.core.supervisor import Supervisor
from skipring.world.legitimacy import explicit_state, is_legitimate, is_strictly_legitimate
from skipring.world.snapshot import Parcel, Snapshot
from tests.model_checking.branching import Branching

STATES_MAX: Final = 6_000_000  # Chosen limit: about 1.2 GB.
PROCESS_BITS: Final = 20  # Chosen limit: in a ring of two nodes each has about a hundred states.

# R9 counts ticks, which would multiply the states; R14 and R15 serve large rings. The search
# publishes nothing, so comparing tries would only multiply the states too.
CHECKED: Final = ProtocolConfig(
    rules=Rules.of(Mode.FAST, without=(Rule.NEIGHBOUR_TIMEOUT, Rule.DIGEST, Rule.QUEUE)),
    repairs=False,
)
TOPIC: Final = "news"

State: TypeAlias = SubscriberState | SupervisorState
Step: TypeAlias = tuple[int, int]  # the difference to a global state; the bits of the sent messages


class Exploration(Struct, frozen=True, kw_only=True):
    """Result of the search; the examples are states that a world file can hold."""

    initial: int
    states: int
    transitions: int
    legitimate: int  # LEGIT_EXPLICIT
    strict: int  # LEGIT_STRICT
    breaches: int  # steps after a LEGIT_STRICT state that change the explicit state
    breach: tuple[Snapshot, Snapshot] | None  # before and after the first breach
    lost: int  # states from which no LEGIT_STRICT state can be reached
    lost_state: Snapshot | None  # the first lost state

    @property
    def is_good(self) -> bool:
        """Return True if closure holds and every state can converge."""
        return self.breaches == 0 and self.lost == 0


def explore(
    initial: Iterable[Snapshot], config: ProtocolConfig = CHECKED, *, states_max: int = STATES_MAX
) -> Exploration:
    """Visit all states reachable from the initial ones and check closure and convergence."""
    if config.rules.digest:
        raise ValueError("R14 counts in variables that are no part of a machine's state()")
    if config.repairs:
        raise ValueError("a session's number is drawn from too many to follow each")
    starts = list(initial)
    space = _Space(sorted(starts[0].subscribers) if starts else [], config)
    graph = _Graph(space, dict.fromkeys(map(space.encode, starts)), states_max)
    return _judge(space, graph)


# -- initial states --------------------------------------------------------------------------


def all_states_of_two() -> Iterator[Snapshot]:
    """Yield every state of two subscribers under the labels 0 and 1, with empty channels."""
    for nodes, a, b in product(("", "ab", "ba", "a"), _states_beside("b"), _states_beside("a")):
        database = tuple((Label.nth(index).bits, node) for index, node in enumerate(nodes))
        yield Snapshot(supervisor=SupervisorState(database=database), subscribers={"a": a, "b": b})


def _states_beside(other: NodeId) -> list[SubscriberState]:
    """Return every state of a subscriber that knows at most one other node."""
    labels = (Label.nth(0), Label.nth(1))
    peers = (None, *(Peer(label, other) for label in labels))
    return [
        SubscriberState(label=label, left=left, right=right, ring=ring)
        for label, left, right, ring in product((*labels, None), peers, peers, peers)
    ]


# -- states and steps as integers ----------------------------------------------------------


class _Channels:
    """Set of all messages that were ever in flight, each with its own bit."""

    def __init__(self, receivers: Iterable[NodeId], shift: int) -> None:
        self.parcels: dict[int, Parcel] = {}
        self._receivers = frozenset(receivers)
        self._shift = shift
        # The key omits the sender: the supervisor only uses it to clear suspicions, and has none
        # here.
        self._bits: dict[tuple[NodeId, Message], int] = {}

    def put(self, to: NodeId, message: Message) -> int:
        """Return the bit of a message; 0 if its receiver does not exist."""
        if to not in self._receivers:
            return 0
        key = (to, message)
        bit = self._bits.setdefault(key, 1 << self._shift + len(self._bits))
        if bit not in self.parcels:
            self.parcels[bit] = Parcel(to, message)
        return bit

    def put_all(self, effects: Iterable[Effect]) -> int:
        """Return the bits of all messages that a step sends."""
        bits = 0
        for effect in effects:
            if isinstance(effect, Send):
                bits |= self.put(effect.to, effect.message)
        return bits


class _Process:
    """One process: its states, numbered in the order of discovery, and the steps from each."""

    def __init__(
        self, node: NodeId, place: int, channels: _Channels, config: ProtocolConfig
    ) -> None:
        self.node = node
        self._shift = place * PROCESS_BITS
        self._field = (1 << PROCESS_BITS) - 1 << self._shift
        self._channels = channels
        self._config = config
        self._states: list[State] = []
        self._codes: dict[str, int] = {}  # by the text of the state, because a state contains dicts
        self._steps: dict[tuple[int, int], tuple[Step, ...]] = {}
        self._chance = Branching()

    def encode(self, state: State) -> int:
        """Return the share of this process in the global state integer."""
        code = self._codes.setdefault(repr(state), len(self._states) << self._shift)
        if code >> self._shift == len(self._states):
            assert len(self._states) < 1 << PROCESS_BITS
            self._states.append(state)
        return code

    def decode(self, code: int) -> State:
        """Return the state of this process in a global state."""
        return self._states[(code & self._field) >> self._shift]

    def steps(self, code: int, bit: int) -> tuple[Step, ...]:
        """Return the possible results of the message with this bit, or of Timeout for bit 0."""
        key = (code & self._field, bit)
        known = self._steps.get(key)
        if known is None:
            known = self._steps[key] = tuple(dict.fromkeys(self._computed_steps(*key)))
        return known

    def _computed_steps(self, before: int, bit: int) -> Iterator[Step]:
        event = Received(self._channels.parcels[bit].message) if bit else Tick()
        for _ in self._chance.ways():
            machine = self._machine(self.decode(before))
            sent = self._channels.put_all(machine.handle(event))
            yield self.encode(machine.state()) - before - bit, sent

    def _machine(self, state: State) -> Subscriber | Supervisor:
        """Return a new machine in this state, so that no other memory affects the step."""
        if isinstance(state, SupervisorState):
            supervisor = Supervisor(config=self._config)
            supervisor.handle(Overwritten(state))
            return supervisor
        subscriber = Subscriber(self.node, topic=TOPIC, rng=self._chance, config=self._config)
        subscriber.handle(Overwritten(state))
        return subscriber


class _Space:
    """Mapping of all global states of some processes to integers."""

    def __init__(self, nodes: list[NodeId], config: ProtocolConfig) -> None:
        names = [SUPERVISOR, *nodes]
        self._channels_from = 1 << len(names) * PROCESS_BITS
        self._channels = _Channels(names, len(names) * PROCESS_BITS)
        self._processes = {
            node: _Process(node, place, self._channels, config) for place, node in enumerate(names)
        }

    def encode(self, snapshot: Snapshot) -> int:
        """Return a state as an integer."""
        states: dict[NodeId, State] = {SUPERVISOR: snapshot.supervisor, **snapshot.subscribers}
        if states.keys() != self._processes.keys() or snapshot.crashed:
            raise ValueError("all initial states must have the same subscribers, none crashed")
        code = sum(self._processes[node].encode(state) for node, state in states.items())
        for parcel in snapshot.channels:
            code |= self._channels.put(parcel.to, parcel.message)
        return code

    def decode(self, code: int) -> Snapshot:
        """Return an integer as a state."""
        states = {node: process.decode(code) for node, process in self._processes.items()}
        supervisor = states.pop(SUPERVISOR)
        assert isinstance(supervisor, SupervisorState)
        return Snapshot(
            supervisor=supervisor,
            subscribers={n: s for n, s in states.items() if isinstance(s, SubscriberState)},
            channels=tuple(parcel for bit, parcel in self._channels.parcels.items() if code & bit),
        )

    def without_channels(self, code: int) -> int:
        """Return the same state with no message in flight."""
        return code % self._channels_from

    def successors(self, code: int) -> list[int]:
        """Return the results of all steps: each delivery, or each Timeout if channels are empty."""
        processes, parcels = self._processes, self._channels.parcels
        flight = code - code % self._channels_from
        if not flight:
            return [
                code + change | sent
                for process in processes.values()
                for change, sent in process.steps(code, 0)
            ]
        found: list[int] = []
        while flight:
            bit = flight & -flight
            flight ^= bit
            steps = processes[parcels[bit].to].steps(code, bit)
            found += [code + change | sent for change, sent in steps]
        return found

    def disturbances(self, code: int) -> int:
        """Return the bits of all known messages that would disturb a legitimate state."""
        # Each message in flight is judged alone, so single messages decide for all sets.
        bits, bare = 0, self.without_channels(code)
        for bit in self._channels.parcels:
            if not is_strictly_legitimate(self.decode(bare | bit)):
                bits |= bit
        return bits


class _Graph:
    """Graph of all reachable states, numbered in the order of discovery, and their steps."""

    def __init__(self, space: _Space, initial: Iterable[int], states_max: int) -> None:
        self.codes = list(initial)
        self.initial = len(self.codes)
        self.targets = array("I")  # the targets of the steps, state after state
        self._ends = array("Q", [0])
        numbers = {code: number for number, code in enumerate(self.codes)}
        for code in self.codes:  # the list grows during the loop
            for successor in space.successors(code):
                number = numbers.setdefault(successor, len(numbers))
                if number == len(self.codes):
                    self.codes.append(successor)
                self.targets.append(number)
            self._ends.append(len(self.targets))
            if len(self.codes) > states_max:
                raise OverflowError(f"more than {states_max} states")

    def successors(self, state: int) -> array[int]:
        """Return the states one step away."""
        return self.targets[self._ends[state] : self._ends[state + 1]]

    def reaching(self, goals: Iterable[int]) -> bytearray:
        """Return for each state whether a goal can be reached from it."""
        ends, sources = self._turned()
        found = bytearray(len(self.codes))
        waiting = list(goals)
        for goal in waiting:
            found[goal] = 1
        while waiting:
            state = waiting.pop()
            for source in sources[ends[state] : ends[state + 1]]:
                if not found[source]:
                    found[source] = 1
                    waiting.append(source)
        return found

    def _turned(self) -> tuple[array[int], array[int]]:
        """Return the reversed steps: for each state the end of its list, and all sources."""
        places = array("Q", bytes(8 * (len(self.codes) + 2)))
        for target in self.targets:
            places[target + 2] += 1
        for state in range(2, len(places)):
            places[state] += places[state - 1]
        sources = array("I", bytes(4 * len(self.targets)))
        for state in range(len(self.codes)):
            for target in self.successors(state):
                sources[places[target + 1]] = state
                places[target + 1] += 1
        return places, sources


# -- judgement -----------------------------------------------------------------------------


def _judge(space: _Space, graph: _Graph) -> Exploration:
    explicit, strict = _legitimate(space, graph)
    breaches = list(_breaches(graph, explicit, strict))
    saved = graph.reaching(strict)
    lost = saved.find(0)
    return Exploration(
        initial=graph.initial,
        states=len(graph.codes),
        transitions=len(graph.targets),
        legitimate=sum(value is not None for value in explicit),
        strict=len(strict),
        breaches=len(breaches),
        breach=_decode_both(space, graph, breaches[0]) if breaches else None,
        lost=saved.count(0),
        lost_state=space.decode(graph.codes[lost]) if lost >= 0 else None,
    )


def _decode_both(space: _Space, graph: _Graph, pair: tuple[int, int]) -> tuple[Snapshot, Snapshot]:
    before, after = pair
    return space.decode(graph.codes[before]), space.decode(graph.codes[after])


def _legitimate(space: _Space, graph: _Graph) -> tuple[list[Hashable], list[int]]:
    """Return the explicit state of each LEGIT_EXPLICIT state, else None; and the strict states."""
    known: dict[int, tuple[Hashable, int]] = {}  # explicit state, bits that disturb it
    explicit: list[Hashable] = []
    strict: list[int] = []
    for number, code in enumerate(graph.codes):
        bare = space.without_channels(code)
        if bare not in known:
            snapshot = space.decode(bare)
            good = is_legitimate(snapshot)
            known[bare] = (
                (explicit_state(snapshot), space.disturbances(bare)) if good else (None, 0)
            )
        value, disturbances = known[bare]
        explicit.append(value)
        if value is not None and not code & disturbances:
            strict.append(number)
    return explicit, strict


def _breaches(
    graph: _Graph, explicit: list[Hashable], strict: list[int]
) -> Iterator[tuple[int, int]]:
    """Yield steps that change the explicit state at any time after it was LEGIT_STRICT."""
    seen = bytearray(len(graph.codes))
    waiting = list(strict)
    for state in waiting:
        seen[state] = 1
    for state in waiting:  # the list grows during the loop
        for successor in graph.successors(state):
            if explicit[successor] != explicit[state]:
                yield state, successor
            elif not seen[successor]:
                seen[successor] = 1
                waiting.append(successor)
