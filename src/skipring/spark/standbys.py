"""Keeping, beside a position in one member's store, the same position in another's.

So a query can go on when the store it reads is gone, and reads nothing twice. The ids of what is
read and of what arrives at the other member are compared as they come; a standby that was lost, or
never was, begins when both members have equal roots.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from skipring.core.peers import TopicId
from skipring.errors import DataLossError, MessageError, UnreachableError
from skipring.runtime.surveying import Holder
from skipring.spark.offsets import Position, Standby
from skipring.spark.stores import Stores

IDS_MAX: Final = 100_000  # Our guess: 3 MB; after more the two are compared by their roots.


def with_standby(
    stores: Stores, topic: TopicId, before: Position | None, after: Position, holder: Holder
) -> Position:
    """A position together with its standby, if there can be one.

    ``before`` is an earlier position in the same log, if there is one.
    """
    with suppress(UnreachableError, MessageError, DataLossError):  # then there is none for now
        moved = before and _moved(stores, topic, before, after, holder)
        return replace(after, standby=moved or _begun(stores, topic, after, holder))
    return replace(after, standby=None)


def _moved(
    stores: Stores, topic: TopicId, before: Position, after: Position, holder: Holder
) -> Standby | None:
    """The standby that was there, moved on by what is read and what has arrived."""
    standby = before.standby or _at_the_start(stores, topic, before)
    if standby is None:
        return None
    other = stores.find(topic, standby)
    if other is None:
        return None
    durable_end = other.survey.durable_end
    if max(after.offset - before.offset, durable_end - standby.offset) > IDS_MAX:
        return None
    end = stores.place_at(topic, other, durable_end)
    read = stores.entries(topic, holder, before.offset, after.offset)
    arrived = stores.entries(topic, other, standby.offset, durable_end)
    return standby.moved((key for _, key in read), arrived, end)


def _at_the_start(stores: Stores, topic: TopicId, before: Position) -> Standby | None:
    """Where nothing has been read, nothing has been read of any store."""
    if before.offset:
        return None
    for other in stores.durable(topic):
        if other.survey.store != before.store:
            return Standby(store=other.survey.store, epoch=other.survey.epoch, offset=0)
    return None


def _begun(stores: Stores, topic: TopicId, after: Position, holder: Holder) -> Standby | None:
    """A standby at the end of a store that holds the same, if everything has been read."""
    holders = stores.durable(topic, bits=0)
    ours = [each for each in holders if each.survey.store == holder.survey.store]
    if not ours or not _is_settled(ours[0]):
        return None
    if (after.offset, after.chain) != (ours[0].survey.end, ours[0].survey.chain):
        return None
    for other in holders:
        survey = other.survey
        is_equal = (survey.digests, survey.count) == (ours[0].survey.digests, ours[0].survey.count)
        if other is not ours[0] and is_equal and _is_settled(other):
            end, chain = survey.durable_end, survey.chain
            return Standby(store=survey.store, epoch=survey.epoch, offset=end, chain=chain)
    return None


def _is_settled(holder: Holder) -> bool:
    """True if all that a member has is on its disk."""
    return holder.survey.end == holder.survey.durable_end
