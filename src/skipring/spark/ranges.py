"""Reads of one member's store, between two of its offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from skipring.core.peers import NodeId, TopicId
from skipring.errors import DataLossError, InputError
from skipring.runtime.surveying import Holder, Stretch
from skipring.spark.offsets import Position
from skipring.spark.options import ReadOptions
from skipring.spark.reach import Reach
from skipring.spark.rows import Rows
from skipring.spark.stores import Stores
from skipring.wire.runtime_messages import Address

ROWS_PER_PARTITION: Final = 25_000  # Our guess: a second's work at most.
PARTITIONS_MAX: Final = 64  # Our guess: more tasks only cost more.


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """What one task reads of a store, without these ids; or only these, if any are named."""

    topic: TopicId
    node: NodeId
    address: Address
    store: str
    epoch: int
    ranges: tuple[range, ...]
    without: frozenset[bytes] = frozenset()
    only: frozenset[bytes] | None = None


def range_partitions(
    topic: TopicId, reach: Reach, options: ReadOptions
) -> Sequence[RangePartition]:
    """The partitions of a batch read between two positions, one of which may be left open."""
    given = [
        offsets[topic]
        for offsets in (options.starting, options.ending)
        if not isinstance(offsets, str)
    ]
    if any((each.store, each.epoch) != (given[0].store, given[0].epoch) for each in given):
        raise InputError(
            f"startingOffsets and endingOffsets of {topic!r} are of different stores or epochs, "
            "which count differently; take both from the same member"
        )
    holder = Stores(reach).find(topic, given[0].store, given[0].epoch)
    if holder is None:
        raise DataLossError(gone(topic, given[0], f"{BRING_IT_BACK}, or read without offsets"))
    start = 0 if isinstance(options.starting, str) else options.starting[topic].offset
    end = holder.survey.durable_end
    if not isinstance(options.ending, str):
        end = options.ending[topic].offset
    if max(start, end) > holder.survey.durable_end:
        raise InputError(
            f"{topic!r} has {holder.survey.durable_end} offsets in that store, "
            f"and {max(start, end)} was asked for"
        )
    return partitions_of(topic, holder, [range(start, end)], options.partitions_min)


def partitions_of(
    topic: TopicId,
    holder: Holder,
    ranges: Sequence[range],
    partitions_min: int | None,
    without: frozenset[bytes] = frozenset(),
) -> list[RangePartition]:
    """Partitions of about the same size for some ranges of a member's store."""
    size = sum(map(len, ranges))
    if not size:
        return []
    count = max(partitions_min or 1, min(size // ROWS_PER_PARTITION, PARTITIONS_MAX))
    return [
        RangePartition(
            topic, holder.node, holder.address, holder.survey.store, holder.survey.epoch, part,
            without,
        )
        for part in cut(ranges, -(-size // count))
    ]  # fmt: skip


def cut(ranges: Sequence[range], size: int) -> Iterator[tuple[range, ...]]:
    """Ranges in groups of about so many offsets, in order."""
    group: list[range] = []
    room = size
    for each in ranges:
        rest = each
        while rest:
            taken, rest = rest[:room], rest[room:]
            group.append(taken)
            room -= len(taken)
            if not room:
                yield tuple(group)
                group, room = [], size
    if group:
        yield tuple(group)


def read_range(reach: Reach, partition: RangePartition) -> Iterator[Rows]:
    """Read a part of a store; DataLossError if the member has another one by now."""
    topic, node, address = partition.topic, partition.node, partition.address
    for part in partition.ranges:
        wanted = Stretch(
            store=partition.store, epoch=partition.epoch, start=part.start, end=part.stop
        )
        for page in reach.pages(topic, node, address, wanted):
            rows = Rows.of(topic, page).without(partition.without)
            if partition.only is not None:
                only = partition.only
                rows = rows.where([i for i, key in enumerate(rows.ids) if key in only])
            yield rows


BRING_IT_BACK: Final = "bring it back"
READ_ON: Final = (
    "bring it back, or set failOnDataLoss to false to read on from another member, or begin anew "
    "with another checkpoint"
)


def gone(topic: TopicId, position: Position, advice: str) -> str:
    """That a store cannot be found, and what to do."""
    return (
        f"the store {position.store} (epoch {position.epoch}) from which {topic!r} was read up to "
        f"offset {position.offset} is gone: its node is down, has left the topic or has lost its "
        f"disk; {advice}"
    )
