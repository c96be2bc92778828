"""Stream reads of the log of one member, from offset to offset.

The planner exists as long as the query, a task as long as a micro-batch. A restarted query needs
only its offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace as replace_fields
from logging import getLogger
from time import monotonic
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from skipring.core.peers import TopicId
from skipring.errors import DataLossError, UnreachableError
from skipring.rpc.log_reader import MemberLog
from skipring.spark.arrow import ALL_ROWS, RowForm
from skipring.spark.failover import SKIPPED, fallback, replayed, with_standby
from skipring.spark.offsets import Position, from_json, to_json
from skipring.spark.options import EARLIEST, ReadOptions
from skipring.spark.partitions import (
    READ_ON,
    RangePartition,
    by_prefix,
    gone,
    partitions_of,
    read_range,
    shared_out,
)
from skipring.spark.ring_client import RingClient, freeze_gc, task_client
from skipring.spark.snapshot import MemberStores, first_offset

_LOG: Final = getLogger(__name__)

Json = dict[str, Any]


class Pending(Struct, frozen=True, kw_only=True):
    """Unread offsets of a member's store after a position."""

    holder: MemberLog
    start: int
    end: int
    seen: frozenset[bytes] = frozenset()
    is_elsewhere: bool = False  # not in the log of the position

    def position(self, taken: int) -> Position:
        """Return the position after ``taken`` offsets, without its chain value."""
        return _position(self.holder, self.start + taken, self.seen)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader that follows topics; Spark stores the offsets."""

    def __init__(self, options: ReadOptions, form: RowForm = ALL_ROWS) -> None:
        self._options = options
        self._form = form
        self._triggered_s = float("-inf")  # time of the last micro-batch
        self._client: RingClient | None = None
        self._stores: MemberStores | None = None
        self._initial: Json | None = None
        self._reading: dict[TopicId, Position] = {}  # after the last planned micro-batch
        self._last: dict[TopicId, Position] | None = None  # end of a query with availableNow

    # -- planner -----------------------------------------------------------------------------

    def initialOffset(self) -> Json:
        """Return the start of a new query; Spark asks twice."""
        if self._initial is None:
            self._initial = to_json(self._starting())
        return self._initial

    def _starting(self) -> dict[TopicId, Position]:
        starting = self._options.starting
        if not isinstance(starting, str):
            return starting
        ends = self._ends()
        if starting != EARLIEST:
            return ends
        return {topic: self._first(topic) for topic in ends}

    def _first(self, topic: TopicId) -> Position:
        """Return the first retained position, at the member with the longest log."""
        holder = self._members().first(topic)
        return _position(holder, holder.survey.low)

    def _ends(self) -> dict[TopicId, Position]:
        """Return the end of each topic, at the member with the longest log."""
        stores = self._members()
        found = {topic: stores.first(topic) for topic in self._topics()}
        return {
            topic: replace(end_place(holder), chain=holder.survey.chain)
            for topic, holder in found.items()
        }

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch."""
        limit = self._options.offsets_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the end of the query to the current ends."""
        self._last = self._ends()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return the end of the next micro-batch, or its start if there is nothing new."""
        positions = self._positions(start)
        ahead = {topic: self._ahead(topic, each) for topic, each in positions.items()}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._waits(sum(each.end - each.start for each in ahead.values())):
            return start
        taken = shared_out(
            {topic: each.end - each.start for topic, each in ahead.items()}, rows_max
        )
        after = {topic: each.position(taken[topic]) for topic, each in ahead.items()}
        if start == self._initial:
            after = {
                topic: each if ahead[topic].is_elsewhere else _with_begin(positions[topic], each)
                for topic, each in after.items()
            }
        if not any(ahead[topic].is_elsewhere or taken[topic] for topic in after):
            return start  # Spark compares texts, and a standby may have changed
        self._reading = {
            topic: self._complete(topic, positions[topic], each, ahead[topic])
            for topic, each in after.items()
        }
        return to_json(self._reading)

    def _waits(self, count: int) -> bool:
        """Return True if this number of unread publications is not enough for a micro-batch yet."""
        is_late = monotonic() - self._triggered_s >= self._options.trigger_delay_s
        if count < self._options.offsets_min and not is_late and self._last is None:
            return True
        self._triggered_s = monotonic()
        return False

    def _complete(
        self, topic: TopicId, before: Position, after: Position, ahead: Pending
    ) -> Position:
        """Return a position with its chain value and its standby."""
        stores = self._members()
        place = stores.place_at(topic, ahead.holder, after.offset)
        after = replace(after, chain=place.chain)
        known = None if ahead.is_elsewhere else before
        return with_standby(stores, topic, known, after, ahead.holder)

    def reportLatestOffset(self) -> Json | None:
        """Return the current ends of the logs that the query reads, for its metrics.

        None without an answer: a query does not fail because its lag is unknown.
        """
        ends = {}
        try:
            for topic in self._topics(self._reading):
                place = self._reading.get(topic)
                holder = place and self._members().find(topic, place, looks=1)
                ends[topic] = end_place(holder or self._members().first(topic))
        except UnreachableError:
            return None
        return to_json(ends)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the partitions of a micro-batch, also when it is replayed."""
        before, after = from_json(start), from_json(end)
        found: list[InputPartition] = []
        for topic, last in after.items():
            first = before.get(topic)
            if first is None or last.begun is not None:
                first = Position(store=last.store, epoch=last.epoch, offset=last.begun or 0)
            found += self._between(topic, first, last)
        return found or [InputPartition(None)]

    def commit(self, end: Json) -> None:
        """Do nothing: the reader keeps no state of committed batches."""

    def stop(self) -> None:
        """Close the connections at the end of the query."""
        if self._client is not None:
            self._client.close()
            self._client = self._stores = None

    # -- task --------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in the process of a task."""
        freeze_gc()
        if not isinstance(partition, RangePartition):
            return
        form = self._form.within(self._options.times(partition.topic))
        with (
            task_client(self._options.access) as client,
            closing(read_range(client, partition, form)) as found,
        ):
            for place, rows in found:
                batch = rows.to_arrow(form, place)
                if batch.num_rows:
                    yield batch

    # -- unread offsets ----------------------------------------------------------------------

    def _members(self) -> MemberStores:
        if self._stores is None:
            self._client = RingClient(self._options.access, self._options.assigned)
            self._stores = MemberStores(self._client)
        return self._stores

    def _positions(self, start: Json) -> dict[TopicId, Position]:
        """Return the positions of the topics to read; a new topic starts at offset 0."""
        known = from_json(start)
        topics = self._topics(known)
        for topic in topics:
            if topic not in known:
                known[topic] = self._first(topic)
        return {topic: known[topic] for topic in topics}

    def _topics(self, known: Iterable[TopicId] = ()) -> Sequence[TopicId]:
        """Return the topics to read: those of the pattern are looked up, or only the known ones."""
        options = self._options
        if options.pattern is None:
            return options.topics
        self._members()
        assert self._client is not None
        found = set(filter(options.is_chosen, known))
        try:
            found.update(filter(options.is_chosen, self._client.topics()))
        except UnreachableError:
            if not found:
                raise
        return sorted(found)

    def _ahead(self, topic: TopicId, position: Position) -> Pending:
        """Return the unread offsets after a position; in another store if its store is gone."""
        holder = self._holder(topic, position)
        if holder is not None:
            end = holder.survey.durable_end
            first = self._first_offset(topic, holder, position.offset)
            ahead = Pending(holder=holder, start=first, end=end, seen=position.seen)
        else:
            ahead = self._elsewhere(topic, position)
        return self._until_the_last(topic, ahead)

    def _holder(self, topic: TopicId, position: Position) -> MemberLog | None:
        """Return the member that has a position; None if no member has it.

        Raise UnreachableError if no member answers, the known one of the standby included.
        """
        stores, standby = self._members(), position.standby
        try:
            return stores.find(topic, position)
        except UnreachableError:
            if standby is None or stores.known(topic, standby) is None:
                raise
            return None

    def _first_offset(self, topic: TopicId, holder: MemberLog, offset: int) -> int:
        fails = self._options.fails_on_data_loss
        return first_offset(topic, holder.survey, offset, fails_on_data_loss=fails)

    def _elsewhere(self, topic: TopicId, position: Position) -> Pending:
        """Return the position in another store.

        If it is unknown, raise DataLossError, or return the end of the other store.
        """
        stores, standby = self._members(), position.standby
        holder = standby and stores.find(topic, standby)
        if standby and holder:
            _LOG.warning("%s", gone(topic, position, f"the query continues at {holder.node}"))
            start, seen = standby.offset, standby.seen | position.seen
        else:
            if position.offset and self._options.fails_on_data_loss:
                raise DataLossError(gone(topic, position, READ_ON))
            holder, seen = stores.first(topic), position.seen
            if position.offset:
                _LOG.warning("%s", gone(topic, position, SKIPPED))
            start = holder.survey.durable_end if position.offset else holder.survey.low
        end = holder.survey.durable_end
        return Pending(holder=holder, start=start, end=end, seen=seen, is_elsewhere=True)

    def _until_the_last(self, topic: TopicId, ahead: Pending) -> Pending:
        """Limit unread offsets to the end of a query with trigger availableNow."""
        if self._last is None:
            return ahead
        survey, last = ahead.holder.survey, self._last[topic]
        if (last.store, last.epoch) != (survey.store, survey.epoch):
            # Not the store with the longest log: use its current end.
            last = self._last[topic] = _position(ahead.holder, ahead.end)
        end = max(ahead.start, min(ahead.end, last.offset))
        return replace(ahead, end=end)

    def _between(
        self, topic: TopicId, before: Position, after: Position
    ) -> Sequence[RangePartition]:
        """Return the partitions from one position to another."""
        stores = self._members()
        holder = self._holder(topic, after)
        # The end first: if a store is restored meanwhile, one of the two checks or the task detects
        # it.
        if holder is not None and before.is_in_log_of(after) and stores.has(topic, holder, before):
            start = self._first_offset(topic, holder, before.offset)
            offsets = range(start, max(start, after.offset))
            other = fallback(stores, topic, before, after)
            size = self._options.size_of_partitions
            if not other:
                return partitions_of(topic, holder, [offsets], size, after, before.seen)
            node, address, end = holder.node, holder.address, after.bare()
            whole = RangePartition(topic, node, address, end, (offsets,), before.seen)
            return by_prefix(replace_fields(whole, fallback=other), size)
        allows_loss = not self._options.fails_on_data_loss
        return replayed(stores, topic, before, after, allows_loss=allows_loss)


def _position(holder: MemberLog, offset: int, seen: frozenset[bytes] = frozenset()) -> Position:
    survey = holder.survey
    return Position(store=survey.store, epoch=survey.epoch, offset=offset, seen=seen)


def end_place(holder: MemberLog) -> Position:
    """Return the durable end of a member's log, without its chain value."""
    return _position(holder, holder.survey.durable_end)


def _with_begin(begin: Position, end: Position) -> Position:
    """Return the end of a query's first micro-batch, with the offset where it began.

    Spark stores only the end. A query that is killed in its first micro-batch asks for the start
    again, which may be in another store by then.
    """
    return replace(end, begun=begin.offset) if begin.is_in_log_of(end) else end
