"""Input partitions: reads of one member's log between two offsets."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from logging import getLogger
from time import monotonic, sleep
from typing import Final, TypeVar

from msgspec.structs import replace
from pyspark.sql.datasource import InputPartition

from skipring.core.limits import SURVEY_BITS_MAX
from skipring.core.log_messages import LogInfo
from skipring.core.peers import NodeId, TopicId
from skipring.errors import DataLossError, InputError, UnreachableError
from skipring.rpc.log_reader import EVERY_RECORD, LogRange, MemberLog
from skipring.spark.arrow import ArrowRows, RecordRun, RowForm, RowPlace
from skipring.spark.offsets import LogPlace, Position
from skipring.spark.options import PartitionSize, ReadOptions
from skipring.spark.ring_client import RingClient
from skipring.spark.snapshot import MemberStores, first_offset, verified
from skipring.wire.rpc import Address

ROWS_PER_PARTITION: Final = 25_000  # Guess: a second of work at most.
PARTITIONS_MAX: Final = 64  # Guess: more tasks only add cost.
ARRIVAL_S: Final = 10.0  # Guess: a publication in flight reaches a member within this time.
AGAIN_S: Final = 0.1

Key = TypeVar("Key")
PlacedRows = Generator[tuple[RowPlace, ArrowRows], None, None]
_LOG: Final = getLogger(__name__)


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """Ranges of a store that one task reads, or a prefix of the ids there.

    ``without`` excludes records by id. ``only`` selects them: the task waits until all of these
    have arrived at the member, unless losses are allowed. If the member is gone, ``fallback``
    has the records of all partitions of the micro-batch in another store; the task reads its prefix
    of them.
    """

    topic: TopicId
    node: NodeId
    address: Address
    end: LogPlace  # in the store; the task fails if the log has changed by then
    ranges: tuple[range, ...]
    without: frozenset[bytes] = frozenset()
    only: frozenset[bytes] | None = None
    allows_loss: bool = False
    bits: int = 0
    prefix: int = 0
    fallback: tuple[RangePartition, ...] = ()


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
        _check_start(stores, topic, holder, each)
    start = holder.survey.low
    if not isinstance(options.starting, str):
        start = first_offset(
            topic,
            holder.survey,
            options.starting[topic].offset,
            fails_on_data_loss=options.fails_on_data_loss,
        )
    end = holder.survey.durable_end
    if not isinstance(options.ending, str):
        end = options.ending[topic].offset
    place = stores.place_at(topic, holder, end)
    return partitions_of(
        topic, holder, [range(start, max(start, end))], options.size_of_partitions, place
    )


def _check_start(stores: MemberStores, topic: TopicId, holder: MemberLog, given: Position) -> None:
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
    wanted: PartitionSize,
    end: LogPlace,
    without: frozenset[bytes] = frozenset(),
) -> list[RangePartition]:
    """Return partitions of about equal size for ranges of a member's store, before ``end``."""
    size = sum(map(len, ranges))
    if not size:
        return []
    count = wanted.partitions(size, min(size // ROWS_PER_PARTITION, PARTITIONS_MAX))
    return [
        RangePartition(topic, holder.node, holder.address, end.bare(), part, without)
        for part in cut(ranges, -(-size // count))
    ]


def by_prefix(whole: RangePartition, wanted: PartitionSize) -> list[RangePartition]:
    """Divide a partition by prefixes of ids, under which another store has the same records."""
    size = sum(map(len, whole.ranges))
    if not size:
        return []
    count = wanted.partitions(size, min(size // ROWS_PER_PARTITION, PARTITIONS_MAX))
    bits = min((count - 1).bit_length(), SURVEY_BITS_MAX)
    return [replace_fields(whole, bits=bits, prefix=prefix) for prefix in range(1 << bits)]


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


def read_range(client: RingClient, partition: RangePartition, form: RowForm) -> PlacedRows:
    """Read a part of a store; continue in another one if the member is gone.

    Raise DataLossError if the member has another store or log, and there is no other member.
    """
    seen: list[RecordRun] = []
    try:
        for rows in ArrowRows.joined(_read_ranges(client, partition, form)):
            seen += [run._replace(records=range(len(run.records))) for run in rows.runs]
            yield RowPlace.of(partition.end), rows
    except (UnreachableError, DataLossError) as error:
        if not partition.fallback:
            raise
        _LOG.warning("%s; the task continues at %s", error, partition.fallback[0].node)
    else:
        return
    ids = frozenset(ArrowRows(partition.topic, seen).ids)
    for other in partition.fallback:
        part = replace_fields(other, bits=partition.bits, prefix=partition.prefix)
        for rows in ArrowRows.joined(_read_ranges(client, part, form)):
            yield RowPlace.of(part.end), rows.without(ids)


def _read_ranges(
    client: RingClient, partition: RangePartition, form: RowForm
) -> Iterator[ArrowRows]:
    """Read the ranges of one member."""
    survey = _verified(client, partition)
    if partition.only is None:
        for part in partition.ranges:
            for rows in _read(client, partition, form, part):
                yield rows.without(partition.without)
        return
    missing = set(ids_under(partition.only, partition.bits, partition.prefix))
    form = replace(form, where=EVERY_RECORD)  # the rows are filtered later
    start, end = partition.ranges[0].start, survey.durable_end
    deadline = monotonic() + ARRIVAL_S
    while missing:
        for rows in _read(client, partition, form, range(start, end)):
            found = rows.only(frozenset(missing))
            missing.difference_update(found.ids)
            yield found
        if missing and (partition.allows_loss or monotonic() > deadline):
            break
        sleep(AGAIN_S)
        start, end = end, _verified(client, partition).durable_end
    if missing and not partition.allows_loss:
        raise DataLossError(gone(partition.topic, partition.end, READ_ON))


def _verified(client: RingClient, partition: RangePartition) -> LogInfo:
    return verified(client, partition.topic, partition.node, partition.address, partition.end)


def _read(
    client: RingClient, partition: RangePartition, form: RowForm, offsets: range
) -> Iterator[ArrowRows]:
    wanted = LogRange(
        store=partition.end.store,
        epoch=partition.end.epoch,
        start=offsets.start,
        end=offsets.stop,
        bits=partition.bits,
        prefix=partition.prefix,
        has_contents=form.has_contents,
        has_payloads=form.has_payloads,
        where=form.where,
    )
    for page in client.pages(partition.topic, partition.node, partition.address, wanted):
        yield ArrowRows.of(partition.topic, page, form, offsets)


def ids_under(ids: Iterable[bytes], bits: int, prefix: int) -> Iterator[bytes]:
    """Yield the ids that begin with the bits of a prefix."""
    return (key for key in ids if key[0] >> (SURVEY_BITS_MAX - bits) == prefix)


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
