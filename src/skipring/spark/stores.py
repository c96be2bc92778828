"""The stores of a topic's members: where they are, and what is in them."""

from __future__ import annotations

from time import sleep
from typing import Final

from skipring.core.peers import NodeId, TopicId
from skipring.errors import UnreachableError
from skipring.runtime.surveying import Holder, Stretch
from skipring.spark.offsets import Entry
from skipring.spark.reach import Reach
from skipring.spark.rows import entries
from skipring.wire.runtime_messages import Address
from skipring.wire.values import LOCATED_MAX

LOOKS: Final = 4  # a member may be restarting
LOOKS_AT_MANY: Final = 8  # Our guess: a supervisor names 32 members at a time, by chance.
AGAIN_S: Final = 1.0  # Our guess: what a node needs to come back is a few of these.


class Stores:
    """Finds members by their stores, and remembers where they were."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._known: dict[tuple[TopicId, str], tuple[NodeId, Address]] = {}

    def find(self, topic: TopicId, store: str, epoch: int) -> Holder | None:
        """The member that has a store in an epoch; None if there is none."""
        if known := self._known.get((topic, store)):  # then no supervisor is needed
            holder = self._reach.survey_of(topic, *known)
            if holder is not None and _is(holder, store, epoch):
                return holder
        for look in range(LOOKS_AT_MANY):
            holders = self._look(topic)
            for holder in holders:
                if _is(holder, store, epoch):
                    return holder
            if look + 1 >= LOOKS and len(holders) < LOCATED_MAX:
                break  # these were all members
            sleep(AGAIN_S)
        return None

    def durable(self, topic: TopicId, bits: int | None = None) -> list[Holder]:
        """Members that keep the topic on a disk, those with most of it first."""
        holders = [holder for holder in self._look(topic, bits) if holder.survey.store]
        return sorted(holders, key=lambda each: (-each.survey.durable_end, each.node))

    def first(self, topic: TopicId) -> Holder:
        """The member that has most of a topic on its disk; UnreachableError if there is none."""
        found = self.durable(topic)
        if not found:
            raise UnreachableError(
                f"no member of {topic!r} keeps its publications on a disk, so there are no "
                "offsets that a stream could go on from; start a node with a data directory"
            )
        return found[0]

    def entries(self, topic: TopicId, holder: Holder, start: int, end: int) -> list[Entry]:
        """Offsets and ids in a part of a member's store."""
        survey = holder.survey
        wanted = Stretch(
            store=survey.store, epoch=survey.epoch, start=start, end=end, has_contents=False
        )
        pages = self._reach.pages(topic, holder.node, holder.address, wanted)
        return [entry for page in pages for entry in entries(page)]

    def _look(self, topic: TopicId, bits: int | None = None) -> list[Holder]:
        holders = self._reach.survey(topic, bits)
        for holder in holders:
            self._known[topic, holder.survey.store] = holder.node, holder.address
        return holders


def _is(holder: Holder, store: str, epoch: int) -> bool:
    return (holder.survey.store, holder.survey.epoch) == (store, epoch)
