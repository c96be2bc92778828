"""Micro-batches whose store is gone, read from the standby: what was read is not read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from logging import getLogger
from typing import Final

from msgspec.structs import replace as struct_replace

from skipring.core.peers import TopicId
from skipring.errors import DataLossError
from skipring.runtime.surveying import Holder
from skipring.spark.offsets import Place, Position, Standby
from skipring.spark.ranges import BRING_IT_BACK, RangePartition, gone, partitions_of
from skipring.spark.stores import Stores

SKIPPED: Final = "what came since is skipped"

_LOG: Final = getLogger(__name__)


def replayed(
    stores: Stores,
    topic: TopicId,
    before: Position,
    after: Position,
    partitions_min: int | None,
) -> Sequence[RangePartition]:
    """What lies between two positions of which the first, or both, are in a store that is gone."""
    end = _place_of(after, before)
    start = _place_in(before, end) if end is not None else None
    if start is None or end is None:
        _LOG.warning("%s", gone(topic, before, SKIPPED))
        return []
    holder = stores.find(topic, end)
    if holder is None:
        advice = f"{BRING_IT_BACK}, or begin anew with another checkpoint"
        raise DataLossError(gone(topic, before, advice))
    if not stores.has(topic, holder, start):  # it was restored, and the end is behind all it has
        _LOG.warning("%s", gone(topic, before, SKIPPED))
        return []
    start = struct_replace(start, seen=start.seen | before.seen)
    latest = stores.place_at(topic, holder, holder.survey.durable_end)
    return partitions_between(topic, holder, (start, end, latest), partitions_min)


def _place_of(after: Position, before: Position) -> Standby | None:
    """Where the end is in a store that is not the one of the beginning."""
    if (after.store, after.epoch) == (before.store, before.epoch):
        return after.standby
    return Standby(store=after.store, epoch=after.epoch, offset=after.offset, chain=after.chain)


def _place_in(before: Position, end: Standby) -> Standby | None:
    """Where the beginning is in the store of the end."""
    standby = before.standby
    if standby is not None and (standby.store, standby.epoch) == (end.store, end.epoch):
        return standby
    if before.offset == 0:  # nothing was read of any store
        return Standby(store=end.store, epoch=end.epoch, offset=0)
    return None


def partitions_between(
    topic: TopicId,
    holder: Holder,
    places: tuple[Standby, Standby, Place],
    partitions_min: int | None,
) -> list[RangePartition]:
    """What has been read at the end and not at the start, in one member's store.

    The third place is where the store ends now.
    """
    start, end, latest = places
    late = {offset for offset, _ in start.missing}
    unread = {offset for offset, _ in end.missing}
    ranges = [range(offset, offset + 1) for offset in sorted(late - unread)]
    ranges += _without(range(start.offset, max(start.offset, end.offset)), unread)
    found = partitions_of(topic, holder, ranges, partitions_min, end, start.seen)
    beyond = end.seen - start.seen
    if beyond:  # read, but they came to this member later, if at all
        rest = range(end.offset, max(end.offset, latest.offset))
        later = partitions_of(topic, holder, [rest], None, latest)
        found += [replace(partition, only=beyond) for partition in later]
    return found


def _without(whole: range, holes: set[int]) -> list[range]:
    """A range without some of its numbers."""
    parts = []
    start = whole.start
    for hole in sorted(holes):
        if start <= hole < whole.stop:
            parts.append(range(start, hole))
            start = hole + 1
    parts.append(range(start, whole.stop))
    return [part for part in parts if part]
