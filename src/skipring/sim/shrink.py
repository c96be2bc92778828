"""Shrinking of a failing world while it still fails (delta debugging).

The search applies each kind of reduction in turn: to all parts at once, then to halves and
quarters, down to single parts. It repeats until no smaller candidate fails. A reduction also
removes every reference to the removed parts, so each candidate is a valid world file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Generic, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.labels import LABEL_BITS, Label
from skipring.core.messages import Message
from skipring.core.peers import NodeId
from skipring.core.state import SubscriberState, SupervisorState
from skipring.sim.runner import Simulation
from skipring.sim.scenario import Scenario
from skipring.world.snapshot import Parcel, Snapshot, peers_in

T = TypeVar("T")

Predicate: TypeAlias = Callable[[Snapshot], bool]
Field: TypeAlias = tuple[NodeId, str]  # a variable of a subscriber


class Reduction(Struct, Generic[T], frozen=True):
    """Kind of reduction: a search for removable parts, and their removal."""

    find: Callable[[Snapshot], Sequence[T]]  # the removable parts, in a fixed order
    reduce: Callable[[Snapshot, Collection[T]], Snapshot]  # the world without the given parts


def fails_to_converge(scenario: Scenario) -> Predicate:
    """Return a predicate that is True if a run from a world fails convergence or closure."""
    return lambda candidate: not Simulation(scenario, candidate).run().is_good


def shrink(start: Snapshot, fails: Predicate, *, attempts_max: int) -> Snapshot:
    """Return the smallest failing world found within ``attempts_max`` attempts."""
    search = _Search(fails, attempts_max)
    world = start
    while True:
        before = world
        for reduction in REDUCTIONS:
            world = search.smallest(world, reduction)
        if world is before:
            return world


class _Search:
    """Bounded search that tests each candidate once."""

    def __init__(self, fails: Predicate, attempts_max: int) -> None:
        self._fails = fails
        self._attempts_left = attempts_max
        self._tried: set[bytes] = set()

    def smallest(self, world: Snapshot, reduction: Reduction[Any]) -> Snapshot:
        """Apply one reduction in ever smaller steps, as long as the world still fails."""
        items = reduction.find(world)
        step = len(items)
        while step > 0:
            place = 0
            while place < len(items) and self._attempts_left > 0:
                candidate = reduction.reduce(world, items[place : place + step])
                if self._has_failed(candidate):
                    world = candidate
                    items = reduction.find(world)  # the following items moved up to this place
                else:
                    place += step
            step //= 2
        return world

    def _has_failed(self, candidate: Snapshot) -> bool:
        """Return True if the candidate fails; False for a candidate that was tested before."""
        key = blake2b(repr(candidate).encode()).digest()
        if key in self._tried:
            return False
        self._tried.add(key)
        self._attempts_left -= 1
        return self._fails(candidate)


# -- messages ------------------------------------------------------------------------------


def _message_places(world: Snapshot) -> Sequence[int]:
    return range(len(world.channels))


def _without_messages(world: Snapshot, places: Collection[int]) -> Snapshot:
    remaining = (parcel for place, parcel in enumerate(world.channels) if place not in places)
    return replace(world, channels=tuple(remaining))


# -- nodes ---------------------------------------------------------------------------------


def _live_nodes(world: Snapshot) -> Sequence[NodeId]:
    return list(world.subscribers)


def _crashed_nodes(world: Snapshot) -> Sequence[NodeId]:
    return world.crashed


def _without_nodes(world: Snapshot, nodes: Collection[NodeId]) -> Snapshot:
    """Return the world without the nodes and without any reference to them."""
    removed = frozenset(nodes)
    supervisor = world.supervisor
    return replace(
        world,
        supervisor=replace(
            supervisor,
            database=tuple(entry for entry in supervisor.database if entry[1] not in removed),
            queue=tuple(node for node in supervisor.queue if node not in removed),
        ),
        subscribers={
            node: _state_without(state, removed)
            for node, state in world.subscribers.items()
            if node not in removed
        },
        crashed=tuple(node for node in world.crashed if node not in removed),
        channels=tuple(_channels_without(world.channels, removed)),
    )


def _state_without(state: SubscriberState, removed: frozenset[NodeId]) -> SubscriberState:
    left, right, ring = (
        peer if peer is not None and peer.node not in removed else None
        for peer in (state.left, state.right, state.ring)
    )
    return replace(
        state,
        left=left,
        right=right,
        ring=ring,
        shortcuts={label: node for label, node in state.shortcuts.items() if node not in removed},
        silence={node: watch for node, watch in state.silence.items() if node not in removed},
        digests={node: total for node, total in state.digests.items() if node not in removed},
    )


def _channels_without(channels: Iterable[Parcel], removed: frozenset[NodeId]) -> Iterable[Parcel]:
    for parcel in channels:
        if parcel.to not in removed and removed.isdisjoint(_nodes_in(parcel.message)):
            yield replace(parcel, sender=None) if parcel.sender in removed else parcel


def _nodes_in(message: Message) -> list[NodeId]:
    """Return every node that a message names; ``sender`` may also be a label and a node."""
    named = [getattr(message, "node", None), getattr(message, "sender", None)]
    named += getattr(message, "remaining", ())
    return [
        *(each for each in named if isinstance(each, str)),
        *(peer.node for peer in peers_in(message)),
    ]


# -- variables of subscribers --------------------------------------------------------------


def _variables(*names: str) -> Reduction[Field]:
    """Reset variables of subscribers to the values of a new subscriber."""

    def find(world: Snapshot) -> Sequence[Field]:
        return [
            (node, name)
            for node, state in world.subscribers.items()
            for name in names
            if getattr(state, name) != getattr(_NEW_SUBSCRIBER, name)
        ]

    def reduce(world: Snapshot, fields: Collection[Field]) -> Snapshot:
        changes: dict[NodeId, dict[str, Any]] = {}
        for node, name in fields:
            changes.setdefault(node, {})[name] = getattr(_NEW_SUBSCRIBER, name)
        return _with_changes(world, changes)

    return Reduction(find, reduce)


def _items(name: str) -> Reduction[tuple[NodeId, Any]]:
    """Remove single items of a collection that each subscriber has: a mapping or a tuple."""

    def find(world: Snapshot) -> Sequence[tuple[NodeId, Any]]:
        return [
            (node, key)
            for node, state in world.subscribers.items()
            for key, _ in _entries(getattr(state, name))
        ]

    def reduce(world: Snapshot, places: Collection[tuple[NodeId, Any]]) -> Snapshot:
        removed = frozenset(places)
        changes: dict[NodeId, dict[str, Any]] = {}
        for node in dict.fromkeys(node for node, _ in places):
            held = getattr(world.subscribers[node], name)
            left = [(key, item) for key, item in _entries(held) if (node, key) not in removed]
            is_mapping = isinstance(held, Mapping)
            changes[node] = {name: dict(left) if is_mapping else tuple([item for _, item in left])}
        return _with_changes(world, changes)

    return Reduction(find, reduce)


def _entries(held: Mapping[Any, Any] | Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    return held.items() if isinstance(held, Mapping) else enumerate(held)


def _long_labels(world: Snapshot) -> Sequence[NodeId]:
    return [
        node
        for node, state in world.subscribers.items()
        if state.label is not None and state.label.length > 1
    ]


def _with_halved_labels(world: Snapshot, nodes: Collection[NodeId]) -> Snapshot:
    return _with_shorter_labels(world, nodes, lambda length: length // 2)


def _with_trimmed_labels(world: Snapshot, nodes: Collection[NodeId]) -> Snapshot:
    return _with_shorter_labels(world, nodes, lambda length: length - 1)


def _with_shorter_labels(
    world: Snapshot, nodes: Collection[NodeId], shorter: Callable[[int], int]
) -> Snapshot:
    """Truncate labels; the result is canonical because trailing zeros do not count."""
    changes: dict[NodeId, dict[str, Any]] = {}
    for node in nodes:
        label = world.subscribers[node].label
        if label is not None:
            cut = LABEL_BITS - shorter(label.length)
            changes[node] = {"label": Label(label.position >> cut << cut)}
    return _with_changes(world, changes)


def _with_changes(world: Snapshot, changes: dict[NodeId, dict[str, Any]]) -> Snapshot:
    """Return the world with changed variables of some subscribers, in the same order."""
    states = {
        node: replace(state, **changes[node]) if node in changes else state
        for node, state in world.subscribers.items()
    }
    return replace(world, subscribers=states)


# -- variables of the supervisor -----------------------------------------------------------


def _database_places(world: Snapshot) -> Sequence[int]:
    return range(len(world.supervisor.database))


def _without_entries(world: Snapshot, places: Collection[int]) -> Snapshot:
    database = world.supervisor.database
    remaining = tuple(entry for place, entry in enumerate(database) if place not in places)
    return replace(world, supervisor=replace(world.supervisor, database=remaining))


def _supervisor_variables(world: Snapshot) -> Sequence[str]:
    return [
        name
        for name in ("memory", "queue", "next")
        if getattr(world.supervisor, name) != getattr(_NEW_SUPERVISOR, name)
    ]


def _without_supervisor_variables(world: Snapshot, names: Collection[str]) -> Snapshot:
    cleared = {name: getattr(_NEW_SUPERVISOR, name) for name in names}
    return replace(world, supervisor=replace(world.supervisor, **cleared))


_NEW_SUBSCRIBER: Final = SubscriberState()
_NEW_SUPERVISOR: Final = SupervisorState()

# The largest reductions come first: they make all later attempts faster.
REDUCTIONS: Final[tuple[Reduction[Any], ...]] = (
    Reduction(_message_places, _without_messages),
    Reduction(_live_nodes, _without_nodes),
    Reduction(_crashed_nodes, _without_nodes),
    _variables("left", "right", "ring"),
    _items("shortcuts"),
    _variables("memory"),
    _variables("silence", "digests"),
    _items("hashes"),
    _items("publications"),
    Reduction(_database_places, _without_entries),
    _variables("label"),
    Reduction(_long_labels, _with_halved_labels),
    Reduction(_long_labels, _with_trimmed_labels),
    Reduction(_supervisor_variables, _without_supervisor_variables),
)
