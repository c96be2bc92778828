"""Standby positions at another member, and the replay of a micro-batch from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace as replace_fields
from logging import getLogger
from typing import Final

from msgspec.structs import replace

from skipring.core.peers import TopicId
from skipring.errors import DataLossError, MessageError, UnreachableError
from skipring.rpc.log_reader import MemberLog
from skipring.spark.offsets import EXCEPTIONS_MAX, LogPlace, Position, Standby
from skipring.spark.options import PartitionSize
from skipring.spark.partitions import (
    READ_ON,
    RESTORE_IT,
    RangePartition,
    gone,
    partitions_of,
)
from skipring.spark.snapshot import MemberStores

IDS_MAX: Final = 100_000  # Guess: 3 MB; beyond this, the roots are compared.


def with_standby(
    stores: MemberStores,
    topic: TopicId,
    before: Position | None,
    after: Position,
    holder: MemberLog,
) -> Position:
    """Return a position together with its standby, if one exists.

    ``before`` is an earlier position in the same log, if there is one.
    """
    ways: tuple[Callable[[], Standby | None], ...] = (
        lambda: _moved(stores, topic, before, after, holder),
        lambda: _begun(stores, topic, after, holder),
        lambda: _kept(stores, topic, before, after, holder),
    )
    for way in ways:
        with suppress(UnreachableError, MessageError, DataLossError):
            if standby := way():
                return replace(after, standby=standby)
    return replace(after, standby=None)


def _moved(
    stores: MemberStores,
    topic: TopicId,
    before: Position | None,
    after: Position,
    holder: MemberLog,
) -> Standby | None:
    """Return the existing standby after the reads and arrivals since its position."""
    if before is None:
        return None
    standby = before.standby or _at_the_start(stores, topic, before)
    if standby is None:
        return None
    other = stores.find(topic, standby, looks=1)
    if other is None:
        return None
    until = min(other.survey.durable_end, standby.offset_after(after.offset - before.offset))
    if max(after.offset - before.offset, until - standby.offset) > IDS_MAX:
        return None
    end = stores.place_at(topic, other, until)
    read = stores.entries(topic, holder, before.offset, after.offset)
    arrived = stores.entries(topic, other, standby.offset, until)
    return standby.moved((key for _, key in read), arrived, end)


def _kept(
    stores: MemberStores,
    topic: TopicId,
    before: Position | None,
    after: Position,
    holder: MemberLog,
) -> Standby | None:
    """Return the existing standby, at its position: its member does not answer now."""
    standby = None if before is None else before.standby
    if before is None or standby is None or after.offset - before.offset > EXCEPTIONS_MAX:
        return None
    read = stores.entries(topic, holder, before.offset, after.offset)
    return standby.moved((key for _, key in read), (), standby)


def _at_the_start(stores: MemberStores, topic: TopicId, before: Position) -> Standby | None:
    """Return offset 0 of another store if ``before`` is at 0: nothing was read yet."""
    if before.offset:
        return None
    for other in stores.durable(topic):
        if other.survey.store != before.store:
            return Standby(store=other.survey.store, epoch=other.survey.epoch, offset=0)
    return None


def _begun(
    stores: MemberStores, topic: TopicId, after: Position, holder: MemberLog
) -> Standby | None:
    """Return a standby at the end of an equal store, if the whole log has been read."""
    holders = stores.durable(topic, bits=0)
    ours = [each for each in holders if each.survey.store == holder.survey.store]
    if not ours or not _is_all_durable(ours[0]):
        return None
    if (after.offset, after.chain) != (ours[0].survey.end, ours[0].survey.chain):
        return None
    for other in holders:
        survey = other.survey
        is_equal = (survey.digests, survey.count) == (ours[0].survey.digests, ours[0].survey.count)
        if other is not ours[0] and is_equal and _is_all_durable(other):
            end, chain = survey.durable_end, survey.chain
            return Standby(store=survey.store, epoch=survey.epoch, offset=end, chain=chain)
    return None


def _is_all_durable(holder: MemberLog) -> bool:
    """Return True if a member has everything on disk."""
    return holder.survey.end == holder.survey.durable_end


SKIPPED: Final = "later publications are skipped"

_LOG: Final = getLogger(__name__)


def fallback(
    stores: MemberStores, topic: TopicId, before: Position, after: Position
) -> tuple[RangePartition, ...]:
    """Return the publications between two positions in another store; none if it is unknown."""
    end = after.standby
    start = _place_in(before, end) if end is not None else None
    if end is None or start is None:
        return ()
    with suppress(UnreachableError, DataLossError):
        holder = stores.find(topic, end, looks=1)
        if holder is not None and stores.has(topic, holder, start):
            return tuple(_between(stores, topic, holder, (start, end, before)))
    return ()


def replayed(
    stores: MemberStores, topic: TopicId, before: Position, after: Position, *, allows_loss: bool
) -> Sequence[RangePartition]:
    """Return the partitions between two positions; the store of ``before``, or of both, is gone."""
    end = _place_of(after, before)
    start = _place_in(before, end) if end is not None else None
    holder = stores.find(topic, end) if end is not None else None
    if end is not None and start is not None and holder is None:
        raise DataLossError(
            gone(topic, before, f"{RESTORE_IT}, or start again with another checkpoint")
        )
    # Without the start, the store was restored, and ends before the position.
    if not (end and start and holder and stores.has(topic, holder, start)):
        if not allows_loss:
            raise DataLossError(gone(topic, before, READ_ON))
        _LOG.warning("%s", gone(topic, before, SKIPPED))
        return []
    found = _between(stores, topic, holder, (start, end, before))
    return [replace_fields(each, allows_loss=allows_loss) for each in found]


def _between(
    stores: MemberStores,
    topic: TopicId,
    holder: MemberLog,
    places: tuple[Standby, Standby, Position],
) -> list[RangePartition]:
    start, end, before = places
    start = replace(start, seen=start.seen | before.seen)
    latest = stores.place_at(topic, holder, holder.survey.durable_end)
    return partitions_between(topic, holder, (start, end, latest))


def _place_of(after: Position, before: Position) -> Standby | None:
    """Return the end as a position in another store than that of ``before``; None if unknown."""
    if (after.store, after.epoch) == (before.store, before.epoch):
        return after.standby
    return Standby(store=after.store, epoch=after.epoch, offset=after.offset, chain=after.chain)


def _place_in(before: Position, end: Standby) -> Standby | None:
    """Return ``before`` as a position in the store of ``end``; None if unknown."""
    standby = before.standby
    if standby is not None and (standby.store, standby.epoch) == (end.store, end.epoch):
        return standby
    if before.offset == 0:  # no store has been read
        return Standby(store=end.store, epoch=end.epoch, offset=0)
    return None


def partitions_between(
    topic: TopicId,
    holder: MemberLog,
    places: tuple[Standby, Standby, LogPlace],
) -> list[RangePartition]:
    """Return the publications read at the end and not at the start, in one member's store.

    The third place is the current end of the store.
    """
    start, end, latest = places
    late = {offset for offset, _ in start.missing}
    unread = {offset for offset, _ in end.missing}
    ranges = _contiguous(sorted(late - unread))
    ranges += _without(range(start.offset, max(start.offset, end.offset)), unread)
    found = partitions_of(topic, holder, ranges, PartitionSize(), end, start.seen)
    beyond = end.seen - start.seen
    if beyond:  # read from another store; they arrived here later, or are in flight
        rest = range(end.offset, max(end.offset, latest.offset))
        node, address, bare = holder.node, holder.address, latest.bare()
        found.append(RangePartition(topic, node, address, bare, (rest,), only=beyond))
    return found


def _contiguous(offsets: Sequence[int]) -> list[range]:
    """Return ascending offsets as ranges; a batch that arrived late is one range."""
    parts: list[range] = []
    for offset in offsets:
        if parts and parts[-1].stop == offset:
            parts[-1] = range(parts[-1].start, offset + 1)
        else:
            parts.append(range(offset, offset + 1))
    return parts


def _without(whole: range, holes: set[int]) -> list[range]:
    """Return a range without some of its numbers, as ranges."""
    parts = []
    start = whole.start
    for hole in sorted(holes):
        if start <= hole < whole.stop:
            parts.append(range(start, hole))
            start = hole + 1
    parts.append(range(start, whole.stop))
    return [part for part in parts if part]
