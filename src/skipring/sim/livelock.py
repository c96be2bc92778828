"""Search for livelocks of the pseudocode: a repeated global state under a deterministic scheduler.

The lockstep computation has no hidden state and no chance. Its state consists of the paper's
variables and channels (section 1.1); every other variable of the machines is new in each round. In
a round all present messages are delivered in a fixed order, then every process runs Timeout once,
so the computation is fair. Coins follow the number of the round: a coin that shows heads with
probability 1/m shows it in every m-th round. If state and phase of the coins repeat, the
computation repeats all states between them without end.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from math import lcm
from random import Random
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from skipring.core.config import Mode, ProtocolConfig, Rule
from skipring.core.state import SubscriberState, SupervisorState
from skipring.sim.engine import IN_FLIGHT_PER_NODE_MAX, MessageLimitError, World
from skipring.sim.process_faults import OracleDetector
from skipring.world.legitimacy import channel_violations, violations
from skipring.world.snapshot import Parcel, Snapshot

# Labels of this length or more give a period beyond any run.
_LENGTH_MAX: Final = 16

_ENCODER: Final = msgspec.msgpack.Encoder()
_DETECTOR: Final = OracleDetector()


class RoundCoins(Random):
    """Coins that follow the number of a round; successive draws of a toss read further digits."""

    def __init__(self, round_number: int) -> None:
        super().__init__(0)
        self._count = round_number + 1  # no coin shows heads in the first round
        self._read = 0

    def getrandbits(self, k: int, /) -> int:
        """Return the first ``k`` binary digits, which start a toss."""
        self._read = k
        return self._count % (1 << k)

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Return the next digit to the base ``start``."""
        assert stop is None
        assert step == 1
        return (self._count >> self._read) % start

    def random(self) -> float:
        """Return 0 and 1/2 in alternate rounds: one of two ring neighbours after the other."""
        return self._count % 2 / 2


class Cycle(Struct, frozen=True):
    """Livelock: the states from round ``start`` on repeat after ``length`` rounds."""

    start: int
    length: int
    coin_period: int
    layers_least: int  # of all states of the cycle
    layers_most: int
    changing: dict[str, int]  # variable -> number of processes at which it changes


class Lockstep(Struct, frozen=True):
    """Result of a lockstep computation: a legitimate state, a livelock, or none in time."""

    rounds: int
    is_legitimate: bool
    cycle: Cycle | None
    is_full: bool = False  # ended at the message limit


def of_the_paper(world: Snapshot) -> Snapshot:
    """Return the state with the paper's variables only, and the channels in a fixed order."""
    return Snapshot(
        topic=world.topic,
        supervisor=SupervisorState(database=world.supervisor.database, next=world.supervisor.next),
        subscribers={
            node: _of_the_paper(state) for node, state in sorted(world.subscribers.items())
        },
        crashed=tuple(sorted(world.crashed)),
        channels=tuple(
            sorted((Parcel(it.to, it.message, it.sender) for it in world.channels), key=_place)
        ),
    )


def _of_the_paper(state: SubscriberState) -> SubscriberState:
    return SubscriberState(
        member=state.member,
        label=state.label,
        left=state.left,
        right=state.right,
        ring=state.ring,
        shortcuts=dict(sorted(state.shortcuts.items())),
        publications=tuple(sorted(state.publications, key=lambda batch: batch.id)),
    )


def _place(parcel: Parcel) -> tuple[str, bytes, str]:
    return parcel.to, _ENCODER.encode(parcel.message), parcel.sender or ""


def advance(state: Snapshot, round_number: int, config: ProtocolConfig) -> Snapshot:
    """Return the state after one round of the lockstep computation."""
    world = World(
        state,
        seed=0,
        config=config,
        rng=RoundCoins(round_number),
        in_flight_max=IN_FLIGHT_PER_NODE_MAX * len(state.subscribers),
    )
    _DETECTOR.strike(world)
    present = list(world.channels)
    world.channels.clear()
    for parcel in present:
        world.deliver(parcel)
    for node in world.processes():
        world.tick(node)
    return of_the_paper(world.snapshot())


def pseudocode(*rules: Rule) -> ProtocolConfig:
    """Return the configuration of mode paper, with a few rules switched on."""
    config = ProtocolConfig.of(Mode.PAPER)
    chosen = {rule.name.lower(): True for rule in rules}
    return replace(config, rules=replace(config.rules, **chosen))


def run_in_lockstep(
    start: Snapshot,
    rounds_max: int,
    observe: Callable[[Snapshot], int],
    config: ProtocolConfig | None = None,
) -> Lockstep:
    """Run the pseudocode until the state is legitimate or repeats; ``observe`` returns its layers.

    A rule of the configuration must not have variables of its own: they would not last.
    """
    config = config or pseudocode()
    state, seen = of_the_paper(start), _History()
    for round_number in range(rounds_max + 1):
        layers = observe(state)
        if is_strict(state):
            return Lockstep(round_number, is_legitimate=True, cycle=None)
        cycle = seen.add(state, layers)
        if cycle is not None:
            return Lockstep(round_number, is_legitimate=False, cycle=cycle)
        if round_number < rounds_max:
            try:
                state = advance(state, round_number, config)
            except MessageLimitError:
                return Lockstep(round_number, is_legitimate=False, cycle=None, is_full=True)
    return Lockstep(rounds_max, is_legitimate=False, cycle=None)


def is_strict(state: Snapshot) -> bool:
    """Return True if the state is strictly legitimate."""
    return next(violations(state), None) is None and next(channel_violations(state), None) is None


class _History:
    """Digests of all states so far, and of each variable of each process."""

    def __init__(self) -> None:
        self._rounds: dict[bytes, list[int]] = {}
        self._variables: list[dict[tuple[str, str], bytes]] = []
        self._layers: list[int] = []
        self._lengths: list[int] = []

    def add(self, state: Snapshot, layers: int) -> Cycle | None:
        """Add the state of the next round; return the livelock that it completes."""
        now = len(self._layers)
        self._variables.append(_variables(state))
        self._layers.append(layers)
        self._lengths.append(
            max((it.label.length for it in state.subscribers.values() if it.label), default=1)
        )
        earlier = self._rounds.setdefault(_digest(_encoded(state)), [])
        found = next((begun for begun in earlier if self._closes(begun, now)), None)
        earlier.append(now)
        return None if found is None else self._cycle(found, now)

    def _closes(self, begun: int, now: int) -> bool:
        return (now - begun) % self._period(begun, now) == 0

    def _period(self, begun: int, now: int) -> int:
        """Return the period of all coins that are tossed between two rounds."""
        longest = min(max(self._lengths[begun : now + 1]), _LENGTH_MAX)
        return lcm(*(k * k << k for k in range(1, longest + 1)))

    def _cycle(self, begun: int, now: int) -> Cycle:
        first, layers = self._variables[begun], self._layers[begun:now]
        changing = {
            place
            for state in self._variables[begun:now]
            for place, value in state.items()
            if first.get(place) != value
        }
        counts: dict[str, int] = {}
        for _, variable in sorted(changing):
            counts[variable] = counts.get(variable, 0) + 1
        return Cycle(begun, now - begun, self._period(begun, now), min(layers), max(layers), counts)


def _variables(state: Snapshot) -> dict[tuple[str, str], bytes]:
    """Return a digest of every variable of every process."""
    found = {("", "database"): _digest(_ENCODER.encode(state.supervisor.database))}
    for node, it in state.subscribers.items():
        for name in ("label", "left", "right", "ring"):
            found[node, name] = _digest(_ENCODER.encode(getattr(it, name)))
        found[node, "shortcuts"] = _digest(_ENCODER.encode(list(it.shortcuts.items())))
    return found


def _encoded(state: Snapshot) -> bytes:
    subscribers = [
        (
            node,
            it.member,
            it.label,
            it.left,
            it.right,
            it.ring,
            list(it.shortcuts.items()),
            [batch.id for batch in it.publications],
        )
        for node, it in state.subscribers.items()
    ]
    channels = [(it.to, it.message, it.sender) for it in state.channels]
    return _ENCODER.encode(
        (state.supervisor.database, state.supervisor.next, subscribers, channels)
    )


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=16).digest()
