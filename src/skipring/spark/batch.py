"""Batch reads: topics at one moment, proven by digests, while members publish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from skipring.core.limits import SURVEY_BITS_MAX
from skipring.core.peers import TopicId
from skipring.core.summaries import digest_of
from skipring.errors import DataLossError, UnreachableError
from skipring.rpc.log_reader import LogRange
from skipring.spark.arrow import ArrowRows
from skipring.spark.options import EARLIEST, LATEST, ReadOptions
from skipring.spark.partitions import RangePartition, range_partitions, read_range
from skipring.spark.ring_client import RingClient, freeze_gc
from skipring.spark.snapshot import Part, SnapshotSource, agreed_parts, is_shared

# Measured: on two cores, 200,000 rows in four partitions take about 10 % more processor time than
# in two. Each partition costs a task, and a scan of the whole log at a member.
PARTITIONS_DEFAULT: Final = 2
ROWS_PER_PARTITION: Final = 100_000  # Guess: some tenths of a second of work.
# Guess: publications in flight reach most members within this time; then the read starts anyway.
AGREEMENT_S: Final = 1.0
AGAIN_S: Final = 0.05


@dataclass(frozen=True)
class PrefixPartition(InputPartition):
    """Part of a topic's snapshot, read by one task."""

    topic: TopicId
    bits: int
    part: Part


class BatchReader(DataSourceReader):
    """Reader of whole topics, or of a range between two positions."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Agree with the members on a snapshot; Spark calls this whenever it plans."""
        freeze_gc()
        with RingClient(self._options.access) as client:
            return [
                partition
                for topic in self._options.topics
                for partition in self._partitions_of(topic, client)
            ] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in the process of a task."""
        freeze_gc()
        options = self._options
        with RingClient(options.access) as client:
            match partition:
                case PrefixPartition(part=part):
                    number, found = part.prefix, read_part(client, partition)
                case RangePartition():
                    number, found = 0, read_range(client, partition)
                case _:
                    return  # the topic is empty
            for rows in found:
                wanted = rows.since(options.since)
                if len(wanted):
                    yield wanted.to_arrow(number, with_headers=options.with_headers)

    def _partitions_of(self, topic: TopicId, client: RingClient) -> Sequence[InputPartition]:
        options = self._options
        if options.starting == EARLIEST and options.ending == LATEST:
            return _prefix_partitions(topic, client, options.partitions_min)
        return range_partitions(topic, client, options)


def _prefix_partitions(
    topic: TopicId, client: RingClient, partitions_min: int | None
) -> list[PrefixPartition]:
    count = max(holder.survey.end for holder in client.survey(topic, None))
    wanted = max(partitions_min or PARTITIONS_DEFAULT, count // ROWS_PER_PARTITION)
    bits = min((wanted - 1).bit_length(), SURVEY_BITS_MAX)
    return [PrefixPartition(topic, bits, part) for part in _snapshot(topic, client, bits)]


def _snapshot(topic: TopicId, client: RingClient, bits: int) -> list[Part]:
    """Survey until at least two members agree on every part, for at most AGREEMENT_S."""
    deadline = monotonic() + AGREEMENT_S
    while True:
        holders = client.survey(topic, bits)
        parts = agreed_parts(holders)
        if is_shared(parts) or len(holders) == 1 or monotonic() > deadline:
            return parts
        sleep(AGAIN_S)


def read_part(client: RingClient, partition: PrefixPartition) -> Iterator[ArrowRows]:
    """Read the batches of a prefix, from one member after the other until complete.

    Raise UnreachableError, which fails the read, if no member still has the agreed batches.
    """
    part = partition.part
    seen: set[bytes] = set()  # ids of batches: the digest is over these
    troubles = []
    for source in part.sources:
        try:
            for rows in _read_from(client, partition, source):
                new = rows.without_batches(seen)
                seen.update(new.batch_ids)
                yield new
        except (UnreachableError, DataLossError) as error:
            troubles.append(str(error))
        if digest_of(sorted(seen)) == part.digest:
            return
        troubles.append(f"from {source.node} on it is not")
    raise UnreachableError(
        f"prefix {part.prefix} of {partition.topic!r} is not what {len(part.sources)} members "
        f"agreed on ({'; '.join(troubles)}); run the query again, it makes a new snapshot"
    )


def _read_from(
    client: RingClient, partition: PrefixPartition, source: SnapshotSource
) -> Iterator[ArrowRows]:
    wanted = LogRange(
        store=source.store,
        epoch=source.epoch,
        start=0,
        end=source.mark,
        bits=partition.bits,
        prefix=partition.part.prefix,
    )
    for page in client.pages(partition.topic, source.node, source.address, wanted):
        yield ArrowRows.of(partition.topic, page)
