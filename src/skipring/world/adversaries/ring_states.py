"""Initial states with wrong labels or references of subscribers (section 3.2)."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

from msgspec.structs import replace

from skipring.core.labels import HALF_CIRCLE, LABEL_BITS, Label
from skipring.core.messages import UNRECORDED
from skipring.core.peers import SUPERVISOR, NodeId, Peer
from skipring.core.state import LivenessState, SubscriberState, legitimate_states
from skipring.world.adversaries.arbitrary import Arbitrary
from skipring.world.adversaries.builders import (
    legitimate_world,
    node_names,
    permuted,
    share,
    shuffled_names,
    sorted_ring,
    with_states,
    world_of,
)
from skipring.world.snapshot import Parcel, Snapshot

# By section 3.2.1 a node with a label this long practically never asks the supervisor.
_LONG_BITS: Final = 60
_SURPLUS_SHORTCUTS: Final = 4  # Guess: about the average number of shortcuts of a node.
_EDGES: Final = ("left", "right", "ring")

# -- rings that the supervisor does not know -------------------------------------------------


def unrecorded_ring(n: int, rng: Random) -> Snapshot:
    """Return one sorted ring of long labels, no node recorded."""
    return world_of(sorted_ring(_long_labelled(shuffled_names(n, rng), rng)))


def unrecorded_components(n: int, rng: Random) -> Snapshot:
    """Return many sorted rings of about four nodes each, with long labels, no node recorded."""
    peers = _long_labelled(shuffled_names(n, rng), rng)
    count = share(n, 4)
    states: dict[NodeId, SubscriberState] = {}
    for first in range(count):
        states |= sorted_ring(peers[first::count])
    return world_of(states)


def _long_labelled(nodes: Iterable[NodeId], rng: Random) -> list[Peer]:
    """Give each node a distinct label of 60 bits."""
    among = list(nodes)
    heads = rng.sample(range(1 << (_LONG_BITS - 1)), len(among))
    return [
        Peer(Label((2 * head + 1) << (LABEL_BITS - _LONG_BITS)), node)
        for head, node in zip(heads, among, strict=True)
    ]


def twin_rings(
    n: int, rng: Random, *, unrecorded_first: bool = False, shortcuts: bool = False
) -> Snapshot:
    """Return two correct rings with the same labels, of which one is recorded.

    Ids break ties between equal labels, so it matters which ring has the smaller ids.
    """
    half = n // 2
    nodes = node_names(n)
    low, high, odd_one = nodes[:half], nodes[half : 2 * half], nodes[2 * half :]
    rng.shuffle(low)
    rng.shuffle(high)
    states = dict.fromkeys(odd_one, SubscriberState())
    for ring in (low, high):
        states |= dict(legitimate_states(ring))
    world = world_of(states, high if unrecorded_first else low)
    if shortcuts:
        return world
    return with_states(world, lambda _, state: replace(state, shortcuts={}))


def pairs_linked_by_wrap_edges(n: int, rng: Random) -> Snapshot:
    """Return pairs linked only by wrap edges, no node recorded (B6)."""
    nodes = shuffled_names(n, rng)
    low, high = (Label.parse(head + "0" * 50 + "1") for head in ("01", "11"))
    states = dict.fromkeys(nodes, SubscriberState())
    for one, other in zip(nodes[::2], nodes[1::2], strict=False):
        states[one] = SubscriberState(label=low, ring=Peer(high, other))
        states[other] = SubscriberState(label=high, ring=Peer(low, one))
    return world_of(states)


# -- all recorded under the correct label, wrong references ---------------------------------


def mislabelled_neighbours(n: int, rng: Random) -> Snapshot:
    """Give each node wrong labels of some of its neighbours."""
    world = legitimate_world(n, rng)
    draw = Arbitrary(rng, list(world.subscribers))

    def mislabel(_: NodeId, state: SubscriberState) -> SubscriberState:
        edges = {name: peer for name in _EDGES if (peer := getattr(state, name)) is not None}
        wrong = rng.sample(list(edges), rng.randint(1, len(edges))) if edges else []
        return replace(state, **{name: _mislabelled(edges[name], draw) for name in wrong})

    return with_states(world, mislabel)


def _mislabelled(peer: Peer, draw: Arbitrary) -> Peer:
    label = draw.label()
    return Peer(label if label != peer.label else Label.nth(label.index + 1), peer.node)


def permuted_edges(n: int, rng: Random) -> Snapshot:
    """Permute left, right and ring at each node."""

    def permute(_: NodeId, state: SubscriberState) -> SubscriberState:
        left, right, ring = permuted((state.left, state.right, state.ring), rng)
        return replace(state, left=left, right=right, ring=ring)

    return with_states(legitimate_world(n, rng), permute)


def reversed_list(n: int, rng: Random) -> Snapshot:
    """Exchange left and right at each node."""
    return with_states(
        legitimate_world(n, rng),
        lambda _, state: replace(state, left=state.right, right=state.left),
    )


def stale_shortcuts(n: int, rng: Random) -> Snapshot:
    """Point every shortcut at a random node, and add surplus shortcuts."""
    world = legitimate_world(n, rng)
    nodes = list(world.subscribers)

    def misdirect(_: NodeId, state: SubscriberState) -> SubscriberState:
        # A label that SR(n) does not have is surplus at every node.
        surplus = [Label.nth(rng.randrange(n, 16 * n)) for _ in range(_SURPLUS_SHORTCUTS)]
        slots = [*state.shortcuts, *surplus]
        return replace(state, shortcuts={label: rng.choice(nodes) for label in slots})

    return with_states(world, misdirect)


def references_to_self_and_supervisor(n: int, rng: Random) -> Snapshot:
    """Let each node refer only to itself and the supervisor (B2)."""
    zero, quarter, three_quarters = (Label.parse(bits) for bits in ("0", "01", "11"))

    def turn_inwards(node: NodeId, state: SubscriberState) -> SubscriberState:
        slots = [*state.shortcuts, zero, quarter]
        return replace(
            state,
            left=Peer(state.label if state.label is not None else zero, node),
            right=Peer(three_quarters, SUPERVISOR),
            ring=Peer(zero, node),
            shortcuts={label: rng.choice((node, SUPERVISOR)) for label in slots},
        )

    return with_states(legitimate_world(n, rng), turn_inwards)


_LEAVER_BITS: Final = 61  # One more than the long labels elsewhere: the first bit is fixed.


def dead_left_neighbours(n: int, rng: Random, *, threshold: int | None = None) -> Snapshot:
    """Return unrecorded nodes with long labels that know only a dead left neighbour.

    A node with a left neighbour does not consider itself minimal, and asks the supervisor with a
    probability of 2^-62. It can detect the error only by the silence of the neighbour (R9).
    """
    nodes = shuffled_names(2 * n, rng)
    live, crashed = nodes[:n], nodes[n:]
    silence = LivenessState(0, threshold, pending=False) if threshold is not None else None
    states: dict[NodeId, SubscriberState] = {}
    for node, dead in zip(live, crashed, strict=True):
        label = _long_label_in_upper_half(rng)
        states[node] = SubscriberState(
            label=label,
            left=Peer(Label(label.position - HALF_CIRCLE), dead),
            silence={dead: silence} if silence is not None else {},
        )
    return replace(world_of(states), crashed=tuple(sorted(crashed)))


def _long_label_in_upper_half(rng: Random) -> Label:
    return Label.parse(f"1{rng.getrandbits(_LEAVER_BITS - 2):0{_LEAVER_BITS - 2}b}1")


def quarter_crashed(n: int, rng: Random) -> Snapshot:
    """Crash a quarter of a legitimate ring without notification; at least one node survives."""
    world = legitimate_world(n, rng)
    nodes = list(world.subscribers)
    crashed = rng.sample(nodes, min(share(n, 4), n - 1))
    states = dict(world.subscribers)
    for node in crashed:
        del states[node]
    return replace(world, subscribers=states, crashed=tuple(sorted(crashed)))


def forged_grants(n: int, rng: Random) -> Snapshot:
    """Mark a quarter of the members as leaving, and forge permissions to leave.

    Half of the leavers have already accepted one and dropped their state, while the supervisor and
    their neighbours still rely on them. The other leavers, and some nodes that want to stay, have
    one in their channel.
    """
    world = legitimate_world(n, rng)
    nodes = shuffled_names(n, rng)
    leaving = min(share(n, 4), n - 1)
    leavers, stayers = nodes[:leaving], nodes[leaving:]
    half = (leaving + 1) // 2
    departed, departing = leavers[:half], leavers[half:]
    states = dict(world.subscribers)
    for node in departed:
        states[node] = SubscriberState(member=False)
    for node in departing:
        states[node] = replace(states[node], member=False)
    deceived = [*departing, *stayers[: share(len(stayers), 8)]]
    channels = tuple(Parcel(node, UNRECORDED) for node in deceived)
    return replace(world, subscribers=states, channels=channels)
