"""Options of the data source, validated before any request.

Spark passes them as text, with names in any case. An invalid option raises an InputError that names
it and the accepted values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Final, Self

import msgspec
from msgspec import Meta, Struct

from skipring.core.limits import NUMBER_MAX, SURVEY_BITS_MAX, check_node, shown
from skipring.core.peers import NodeId, TopicId
from skipring.errors import InputError, MessageError
from skipring.net.access import Access
from skipring.spark.offsets import Position, parse_positions
from skipring.wire.limits import check_topic

ACCESS_OPTIONS: Final = ("supervisor", "ca", "cert", "key")
READ_OPTIONS: Final = (
    *ACCESS_OPTIONS,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "pushFilters",
    "asTable",
)
WRITE_OPTIONS: Final = (*ACCESS_OPTIONS, "topic", "publisher", "writeId")
_OF_SPARK: Final = frozenset({"path", "checkpointlocation"})  # which Spark passes on
PARTITIONS_MAX: Final = 1 << SURVEY_BITS_MAX  # in a batch, each is a prefix of at most 8 bits
PUBLISHER: Final = "spark"
AUTO: Final = "auto"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "asTable")
# A table has the newest value of each key among all publications.
NOT_OF_TABLES: Final = (
    *("startingOffsets", "endingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("endingTimestamp", "minPartitions", "maxRecordsPerPartition", "pushFilters"),
)
STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
CHOICES: Final = ("subscribe", "subscribePattern", "assign")
TRIGGER_DELAY_S: Final = 900.0  # as in Kafka's source
_DURATION: Final = re.compile(r"(\d{1,9})\s*(ms|s|m|h)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BOOLEANS: Final = {"true": True, "false": False}
_MILLISECONDS_MAX: Final = NUMBER_MAX // 1000

_Milliseconds = Annotated[int, Meta(ge=0, le=_MILLISECONDS_MAX)]
Offsets = str | dict[TopicId, Position]  # "earliest", "latest", or a position in each topic


class PartitionSize(Struct, frozen=True):
    """Wishes for the number and the size of partitions."""

    count_min: int | None = None
    records_max: int | None = None

    def partitions(self, records: int, usual: int) -> int:
        """Return the number of partitions for this number of records."""
        limited = -(-records // self.records_max) if self.records_max else 1
        return max(limited, usual if self.count_min is None else self.count_min, 1)


def _check_combination(given: _OptionTexts, *, is_stream: bool, is_table: bool) -> None:
    """Raise an InputError for an option that this kind of read does not have."""
    for name in BATCH_ONLY if is_stream else STREAM_ONLY:
        if given.text(name) is not None:
            raise InputError(f'"{name}" is for {"batch reads" if is_stream else "streams"}')
    for name in NOT_OF_TABLES if is_table else ():
        if given.text(name) is not None:
            raise InputError(f'"asTable" reads whole topics; leave out "{name}"')


class ReadOptions(Struct, frozen=True, kw_only=True):
    """Options of a read."""

    access: Access
    topics: tuple[TopicId, ...]  # none with a pattern
    pattern: str | None
    assigned: dict[TopicId, frozenset[NodeId]]  # members to read; others are not asked
    starting: Offsets
    ending: Offsets
    # Microseconds since the epoch: earlier publications and those from the end on are skipped.
    since: dict[TopicId, int] | int
    until: int | None
    fails_on_data_loss: bool
    offsets_max: int | None  # per trigger
    offsets_min: int  # per trigger, unless the delay has passed
    trigger_delay_s: float
    size_of_partitions: PartitionSize
    pushes_filters: bool | None  # None: if Spark keeps the filters of two queries apart
    is_table: bool  # the newest value of each key

    def times(self, topic: TopicId) -> tuple[int, int] | None:
        """Return the first and the last time of the publications to read; None for all."""
        since = self.since if isinstance(self.since, int) else self.since.get(topic, 0)
        if not since and self.until is None:
            return None
        return since, NUMBER_MAX if self.until is None else self.until - 1

    def is_chosen(self, topic: TopicId) -> bool:
        """Return True if a topic matches the pattern."""
        return self.pattern is not None and re.fullmatch(self.pattern, topic) is not None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> Self:
        """Check the options of a read."""
        given = _OptionTexts(options, READ_OPTIONS)
        _headers(given)  # Spark does not ask for the columns if the user has given a schema
        is_table = given.boolean("asTable", default=False)
        _check_combination(given, is_stream=is_stream, is_table=is_table)
        topics, pattern, assigned = _chosen_topics(given)
        starting = _offsets(given, "startingOffsets", LATEST if is_stream else EARLIEST, topics)
        ending = _offsets(given, "endingOffsets", LATEST, topics)
        if not is_stream and starting == LATEST:
            raise InputError('"startingOffsets" of a batch read cannot be "latest"')
        if ending == EARLIEST:
            raise InputError('"endingOffsets" cannot be "earliest"')
        since = _since(given)
        until = given.number("endingTimestamp", _MILLISECONDS_MAX, first=1)
        return cls(
            access=_access(given),
            topics=topics,
            pattern=pattern,
            assigned=assigned,
            starting=EARLIEST if since is not None else starting,
            ending=ending,
            since=since or 0,
            until=None if until is None else 1000 * until,
            fails_on_data_loss=given.boolean("failOnDataLoss", default=True),
            offsets_max=given.number("maxOffsetsPerTrigger", NUMBER_MAX, first=1),
            offsets_min=given.number("minOffsetsPerTrigger", NUMBER_MAX, first=1) or 0,
            trigger_delay_s=given.duration_s("maxTriggerDelay", default=TRIGGER_DELAY_S),
            size_of_partitions=PartitionSize(
                given.number("minPartitions", PARTITIONS_MAX, first=1),
                given.number("maxRecordsPerPartition", NUMBER_MAX, first=1),
            ),
            pushes_filters=None
            if (given.text("pushFilters") or AUTO).lower() == AUTO
            else given.boolean("pushFilters", default=False),
            is_table=is_table,
        )


class WriteOptions(Struct, frozen=True, kw_only=True):
    """Options of a write: topic, publisher and write id."""

    access: Access
    topic: TopicId | None  # None: each row has its own
    publisher: NodeId
    write_id: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Check the options of a write."""
        given = _OptionTexts(options, WRITE_OPTIONS)
        topic, publisher = given.text("topic"), given.text("publisher") or PUBLISHER
        try:
            check_node(publisher)
            if topic is not None:
                check_topic(topic)
        except MessageError as error:
            raise InputError(str(error)) from None
        return cls(
            access=_access(given),
            topic=topic,
            publisher=publisher,
            write_id=given.text("writeId"),
        )


def check_names(options: Iterable[str], known: Iterable[str]) -> None:
    """Raise InputError if an option is neither known nor one of Spark's."""
    names = {name.lower(): name for name in known}
    for name in {name.lower() for name in options} - names.keys() - _OF_SPARK:
        near = get_close_matches(name, names, n=1)
        hint = (
            f'did you mean "{names[near[0]]}"?' if near else f"the options are {', '.join(known)}"
        )
        raise InputError(f"unknown option {shown(name)}; {hint}")


class _OptionTexts:
    """Options by lower-case name; an unknown option raises InputError."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        check_names(options, known)
        self._texts = {name.lower(): text for name, text in options.items()}

    def text(self, name: str) -> str | None:
        """Return the value of an option; None if it is absent."""
        return self._texts.get(name.lower())

    def boolean(self, name: str, *, default: bool) -> bool:
        """Return a value that is true or false."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in _BOOLEANS:
            raise InputError(f'"{name}" is true or false, not {shown(text)}')
        return _BOOLEANS[text.lower()]

    def number(self, name: str, last: int, first: int = 0) -> int | None:
        """Return a value that is a number; None if it is absent."""
        text = self.text(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or not first <= int(text) <= last:
            raise InputError(f'"{name}" is a number from {first} to {last}, not {shown(text)}')
        return int(text)

    def duration_s(self, name: str, *, default: float) -> float:
        """Return a value such as 90s, 15m or 2h in seconds."""
        text = self.text(name)
        if text is None:
            return default
        match = _DURATION.fullmatch(text)
        if match is None:
            raise InputError(f'"{name}" is a duration such as 500ms, 90s or 15m, not {shown(text)}')
        return int(match[1]) * _UNITS[match[2]]


def _access(given: _OptionTexts) -> Access:
    """Return the cluster that the options name, else that of the environment or the context."""
    files = {name: given.text(name) for name in ("ca", "cert", "key")}
    return Access.resolve(given.text("supervisor"), **files)


def included_headers(options: Mapping[str, str]) -> str | None:
    """Return the form of the headers in a read; check the names of all its options."""
    return _headers(_OptionTexts(options, READ_OPTIONS))


def _headers(given: _OptionTexts) -> str | None:
    """Return "array" or "map", or None without headers."""
    if (given.text("includeHeaders") or "").lower() == "map":
        return "map"
    return "array" if given.boolean("includeHeaders", default=False) else None


def _chosen_topics(
    given: _OptionTexts,
) -> tuple[tuple[TopicId, ...], str | None, dict[TopicId, frozenset[NodeId]]]:
    """Return the topics, or a pattern of their names, and the members to read."""
    names = [name for name in CHOICES if given.text(name) is not None]
    if len(names) > 1:
        raise InputError(f'give "{names[0]}" or "{names[1]}", not both')
    pattern = given.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(f'"subscribePattern" is no regular expression: {error}') from None
        return (), pattern, {}
    text = given.text("assign")
    if text is None:
        return _topics(given), None, {}
    try:
        assigned = msgspec.json.decode(text, type=dict[str, set[str]])
    except ValueError:
        raise InputError(
            f'"assign" is JSON such as {{"orders": ["n01", "n02"]}}, not {shown(text)}'
        ) from None
    return (
        _checked(sorted(assigned)),
        None,
        {topic: frozenset(nodes) for topic, nodes in assigned.items()},
    )


def _topics(given: _OptionTexts) -> tuple[TopicId, ...]:
    text = given.text("subscribe")
    return _checked([part.strip() for part in (text or "").split(",") if part.strip()])


def _checked(topics: Sequence[TopicId]) -> tuple[TopicId, ...]:
    if not topics:
        raise InputError(
            'option "subscribe" is missing; name the topics to read, as in '
            '.option("subscribe", "orders") or "orders,invoices"'
        )
    for topic in topics:
        try:
            check_topic(topic)
        except MessageError as error:
            raise InputError(str(error)) from None
    return tuple(dict.fromkeys(topics))


def _since(given: _OptionTexts) -> dict[TopicId, int] | int | None:
    """Return the first time to read, for all topics or for each; None if it is not given."""
    names = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    present = [name for name in names if given.text(name) is not None]
    if len(present) > 1:
        raise InputError(f'give "{present[0]}" or "{present[1]}", not both')
    number = given.number("startingTimestamp", _MILLISECONDS_MAX)
    if number is not None:
        return 1000 * number
    text = given.text("startingOffsetsByTimestamp")
    if text is None:
        return None
    try:
        times = msgspec.json.decode(text, type=dict[str, _Milliseconds])
    except ValueError:
        raise InputError(
            f'"startingOffsetsByTimestamp" is JSON such as {{"orders": 1700000000000}}, not '
            f"{shown(text)}"
        ) from None
    return {topic: 1000 * time for topic, time in times.items()}


def _offsets(given: _OptionTexts, name: str, default: str, topics: tuple[TopicId, ...]) -> Offsets:
    text = given.text(name)
    if text is None or text.lower() in (EARLIEST, LATEST):
        return default if text is None else text.lower()
    positions = parse_positions(text, name)
    if not topics:
        raise InputError(f'"{name}" has positions; name their topics with "subscribe"')
    if positions.keys() != set(topics):
        raise InputError(
            f'"{name}" has positions of {", ".join(sorted(positions))}, but "subscribe" names '
            f"{', '.join(topics)}; give one position for each of these topics"
        )
    return positions
