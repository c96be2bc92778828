"""The way of each publication through the ring, put together from what the nodes noted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from skipring.core.effects import Origin
from skipring.core.peers import NodeId
from skipring.wire.watching import Arrival

KEPT: Final = 2000  # Limit of ours: publications whose way is remembered.
STEPS_MAX: Final = 200_000  # Limit of ours, over all of them: some 60 MB.
PACK_MAX: Final = 64  # of a longer pack only the first publications have a journey

_WAYS: Final = tuple(str(origin) for origin in Origin)


class Pulse(Struct, frozen=True, kw_only=True, rename={"sender": "from"}):
    """A message with publications that has come to a node."""

    sender: NodeId | None
    to: NodeId
    time: float  # milliseconds since the epoch, as all below
    publisher: NodeId
    seq: int
    hops: int
    way: str
    count: int
    duplicates: int
    latency: float | None


class Step(Struct, kw_only=True, rename={"sender": "from"}):
    """How a publication came to one node."""

    node: NodeId
    sender: NodeId | None
    time: float
    latency: float | None
    hops: int
    way: str
    duplicates: int = 0  # how often it came again


class Journey(Struct, frozen=True, kw_only=True):
    """How a publication came to everybody, as far as it was seen."""

    publisher: NodeId
    seq: int
    published: float | None
    members: int
    reached: int
    messages: int  # that brought it, new or not
    duplicates: int
    arrivals: tuple[Step, ...]  # the first comes first


def pulse_of(node: NodeId, arrival: Arrival) -> Pulse:
    """What a node noted, as it is shown."""
    return Pulse(
        sender=arrival.sender,
        to=node,
        time=arrival.time / 1000,
        publisher=arrival.publisher,
        seq=arrival.seq,
        hops=arrival.hops,
        way=_WAYS[arrival.origin] if arrival.origin < len(_WAYS) else _WAYS[-1],
        count=arrival.count,
        duplicates=max(arrival.count - arrival.fresh, 0),
        latency=(arrival.time - arrival.published) / 1000 if arrival.published else None,
    )


class Journeys:
    """The ways of the last publications."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple[NodeId, int], dict[NodeId, Step]] = OrderedDict()
        self._count = 0  # of all steps

    def add(self, pulses: Iterable[Pulse]) -> None:
        """Note what has come to nodes."""
        for pulse in pulses:
            for seq in range(pulse.seq, pulse.seq + min(pulse.count, PACK_MAX)):
                self._add_step(seq, pulse)

    def _add_step(self, seq: int, pulse: Pulse) -> None:
        steps = self._steps.setdefault((pulse.publisher, seq), {})
        self._steps.move_to_end((pulse.publisher, seq))
        known = steps.get(pulse.to)
        if known is None:
            self._count += 1
            steps[pulse.to] = Step(
                node=pulse.to,
                sender=pulse.sender,
                time=pulse.time,
                latency=pulse.latency,
                hops=pulse.hops,
                way=pulse.way,
                duplicates=int(pulse.duplicates == pulse.count),
            )
        else:
            known.duplicates += 1
        while len(self._steps) > KEPT or self._count > STEPS_MAX:
            self._count -= len(self._steps.popitem(last=False)[1])

    def find(self, publisher: NodeId, seq: int, members: int) -> Journey | None:
        """The way of a publication; None if nothing was seen of it."""
        steps = self._steps.get((publisher, seq))
        if steps is None:
            return None
        arrivals = tuple(sorted(steps.values(), key=lambda step: step.time))
        published = (step.time - step.latency for step in arrivals if step.latency is not None)
        duplicates = sum(step.duplicates for step in arrivals)
        sent = sum(step.sender is not None for step in arrivals)
        return Journey(
            publisher=publisher,
            seq=seq,
            published=next(published, None),
            members=members,
            reached=len(arrivals),
            messages=sent + duplicates,
            duplicates=duplicates,
            arrivals=arrivals,
        )
