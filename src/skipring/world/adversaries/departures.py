"""Starting states in which some have crashed, or want to leave (sections 3.3 and 4.1)."""

from __future__ import annotations

from random import Random
from typing import Final

from msgspec.structs import replace

from skipring.core.labels import HALF_CIRCLE, Label
from skipring.core.messages import UNRECORDED
from skipring.core.peers import NodeId, Peer
from skipring.core.state import SilenceState, SubscriberState
from skipring.world.adversaries.building import legitimate_world, share, shuffled_names, world_of
from skipring.world.snapshot import Parcel, Snapshot

_LONG_BITS: Final = 61  # One more than the long labels elsewhere: the first bit is given.


def dead_left_neighbours(n: int, rng: Random, *, threshold: int | None = None) -> Snapshot:
    """Unrecorded nodes with long labels, each with nothing but a dead left neighbour.

    Who has a left neighbour does not think itself minimal, and asks the supervisor with a
    probability of 2^-62: only the neighbour's silence can tell it that something is wrong (R9).
    """
    nodes = shuffled_names(2 * n, rng)
    live, crashed = nodes[:n], nodes[n:]
    silence = SilenceState(0, threshold, pending=False) if threshold is not None else None
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
    return Label.parse(f"1{rng.getrandbits(_LONG_BITS - 2):0{_LONG_BITS - 2}b}1")


def quarter_crashed(n: int, rng: Random) -> Snapshot:
    """A quarter of a legitimate ring is dead, and nobody has noticed; one at least lives."""
    world = legitimate_world(n, rng)
    nodes = list(world.subscribers)
    crashed = rng.sample(nodes, min(share(n, 4), n - 1))
    states = dict(world.subscribers)
    for node in crashed:
        del states[node]
    return replace(world, subscribers=states, crashed=tuple(sorted(crashed)))


def forged_grants(n: int, rng: Random) -> Snapshot:
    """A quarter wants to leave, and permissions to do so come that nobody gave.

    Half of those who leave have believed one already and forgotten everything, while the
    supervisor and their neighbours count on them; the others are about to, and so are some who
    want to stay.
    """
    world = legitimate_world(n, rng)
    nodes = shuffled_names(n, rng)
    leaving = min(share(n, 4), n - 1)
    leavers, stayers = nodes[:leaving], nodes[leaving:]
    half = (leaving + 1) // 2
    gone, going = leavers[:half], leavers[half:]
    states = dict(world.subscribers)
    for node in gone:
        states[node] = SubscriberState(member=False)
    for node in going:
        states[node] = replace(states[node], member=False)
    deceived = [*going, *stayers[: share(len(stayers), 8)]]
    channels = tuple(Parcel(node, UNRECORDED) for node in deceived)
    return replace(world, subscribers=states, channels=channels)
