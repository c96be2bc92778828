"""Which members can be read from, so that together they give one snapshot of a topic.

The snapshot is what one member, the reference, had stored at one moment, as its digests say. Under
every prefix where another member has the same digest, it has the same publications, and may be read
from instead. So publishing can go on: what is new somewhere only keeps some members from being
read under some prefixes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from skipring.core.peers import NodeId
from skipring.runtime.surveying import Holder
from skipring.wire.runtime_messages import Address


class Source(Struct, frozen=True):
    """A member to read from: what it has at offsets below its mark."""

    node: NodeId
    address: Address
    store: str
    epoch: int
    mark: int


class Part(Struct, frozen=True):
    """What lies under one prefix, as its digest says, and who has it; the first is to be asked."""

    prefix: int
    digest: bytes
    sources: tuple[Source, ...]


def agreed_parts(holders: Sequence[Holder]) -> list[Part]:
    """One snapshot of a topic in parts, read from as many members as agree; without empty parts.

    The reference is a member that has most, and among those one with whom most agree.
    """
    reference = max(holders, key=lambda each: (each.survey.count, _agreement(each, holders)))
    loads: Counter[NodeId] = Counter()
    parts = []
    for prefix, digest in enumerate(reference.survey.digests):
        if digest:
            alike = [each for each in holders if _digest(each, prefix) == digest]
            alike.sort(key=lambda each: (loads[each.node], each.node))
            loads[alike[0].node] += 1
            sources = tuple(_source(each) for each in alike)
            parts.append(Part(prefix, digest, sources))
    return parts


def _source(holder: Holder) -> Source:
    survey = holder.survey
    return Source(holder.node, holder.address, survey.store, survey.epoch, survey.end)


def is_shared(parts: Sequence[Part]) -> bool:
    """True if every part can be had from two members at least."""
    return all(len(part.sources) > 1 for part in parts)


def _agreement(holder: Holder, holders: Sequence[Holder]) -> int:
    """Of how many members and prefixes the digests are those of a member."""
    digests = holder.survey.digests
    return sum(
        _digest(each, prefix) == digest for each in holders for prefix, digest in enumerate(digests)
    )


def _digest(holder: Holder, prefix: int) -> bytes | None:
    digests = holder.survey.digests
    return digests[prefix] if prefix < len(digests) else None
