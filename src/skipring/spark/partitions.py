"""Input partitions: reads of one member's log between two offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec.structs import replace
from pyspark.sql.datasource import InputPartition

from skipring.core.peers import NodeId, TopicId
from skipring.errors import DataLossError, InputError
from skipring.rpc.log_reader import LogRange, MemberLog
from skipring.spark.arrow import ArrowRows
from skipring.spark.offsets import LogPlace, Position
from skipring.spark.options import ReadOptions
from skipring.spark.ring_client import RingClient
from skipring.spark.snapshot import MemberStores, verified
from skipring.wire.rpc import Address

ROWS_PER_PARTITION: Final = 25_000  # Guess: a second of work at most.
PARTITIONS_MAX: Final = 64  # Guess: more tasks only add cost.

Key = TypeVar("Key")


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """Ranges of a store that one task reads.

    ``without`` excludes records by id, ``only`` selects them.
    """

    topic: TopicId
    node: NodeId
    address: Address
    end: LogPlace  # in the store; the task fails if the log has changed by then
    ranges: tuple[range, ...]
    without: frozenset[bytes] = frozenset()
    only: frozenset[bytes] | None = None


def range_partitions(
    topic: TopicId, client: RingClient, options: ReadOptions
) -> Sequence[RangePartition]:
    """Return the partitions of a batch read between two positions; one of them may be open."""
    given = [
        offsets[topic]
        for offsets in (options.starting, options.ending)
        if not isinstance(offsets, str)
    ]
    if any((each.store, each.epoch) != (given[0].store, given[0].epoch) for each in given):
        raise InputError(
            f"startingOffsets and endingOffsets of {topic!r} are of different stores or epochs, "
            "whose offsets differ; use positions of the same member"
        )
    stores = MemberStores(client)
    holder = stores.find(topic, replace(given[0], offset=0))  # the member that has the store
    if holder is None:
        raise DataLossError(gone(topic, given[0], READ_WITHOUT))
    for each in given:
        _check_given(stores, topic, holder, each)
    start = 0 if isinstance(options.starting, str) else options.starting[topic].offset
    end = holder.survey.durable_end
    if not isinstance(options.ending, str):
        end = options.ending[topic].offset
    place = stores.place_at(topic, holder, end)
    return partitions_of(topic, holder, [range(start, end)], options.partitions_min, place)


def _check_given(stores: MemberStores, topic: TopicId, holder: MemberLog, given: Position) -> None:
    """Raise DataLossError or InputError if a position is not in a member's store."""
    end = holder.survey.durable_end
    if given.epoch == holder.survey.epoch and not given.chain and given.offset > end:
        raise InputError(
            f"{topic!r} has {end} offsets in that store; {given.offset} is beyond its end"
        )
    if not stores.has(topic, holder, given):
        raise DataLossError(gone(topic, given, READ_WITHOUT))


def partitions_of(
    topic: TopicId,
    holder: MemberLog,
    ranges: Sequence[range],
    partitions_min: int | None,
    end: LogPlace,
    without: frozenset[bytes] = frozenset(),
) -> list[RangePartition]:
    """Return partitions of about equal size for ranges of a member's store, before ``end``."""
    size = sum(map(len, ranges))
    if not size:
        return []
    count = max(partitions_min or 1, min(size // ROWS_PER_PARTITION, PARTITIONS_MAX))
    return [
        RangePartition(topic, holder.node, holder.address, end.bare(), part, without)
        for part in cut(ranges, -(-size // count))
    ]


def cut(ranges: Sequence[range], size: int) -> Iterator[tuple[range, ...]]:
    """Yield ranges in groups of about ``size`` offsets, in order."""
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


def shared_out(ahead: Mapping[Key, int], rows_max: int | None) -> dict[Key, int]:
    """Return the offsets to read from each log, at most ``rows_max``: the same share of each.

    A log with unread offsets advances by at least one.
    """
    total = sum(ahead.values())
    if rows_max is None or total <= rows_max:
        return dict(ahead)
    return {key: max(count * rows_max // total, min(count, 1)) for key, count in ahead.items()}


def read_range(client: RingClient, partition: RangePartition) -> Iterator[ArrowRows]:
    """Read a part of a store; raise DataLossError if the member has another store or log."""
    topic, node, address, end = partition.topic, partition.node, partition.address, partition.end
    verified(client, topic, node, address, end)
    for part in partition.ranges:
        wanted = LogRange(store=end.store, epoch=end.epoch, start=part.start, end=part.stop)
        for page in client.pages(topic, node, address, wanted):
            rows = ArrowRows.of(topic, page, part).without(partition.without)
            yield rows if partition.only is None else rows.only(partition.only)


RESTORE_IT: Final = "restore that store"
READ_WITHOUT: Final = f"{RESTORE_IT}, or read without offsets"
READ_ON: Final = (
    f"{RESTORE_IT}, or set failOnDataLoss to false to continue at another member, or start again "
    "with another checkpoint"
)


def gone(topic: TopicId, position: LogPlace, advice: str) -> str:
    """Return the message that a store is gone, with advice."""
    return (
        f"the store {position.store} (epoch {position.epoch}) from which {topic!r} was read up to "
        f"offset {position.offset} is gone: its node is down, has left the topic, has lost its "
        f"disk or was restored from a backup; {advice}"
    )
