"""Options of the data source, validated before any request.

Spark passes them as text, with names in any case. An invalid option raises an InputError that names
it and the accepted values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final, Self

from msgspec import Struct

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
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "includeHeaders",
)
WRITE_OPTIONS: Final = (*ACCESS_OPTIONS, "topic", "publisher", "writeId")
_OF_SPARK: Final = frozenset({"path", "checkpointlocation"})  # which Spark passes on
PARTITIONS_MAX: Final = 1 << SURVEY_BITS_MAX  # in a batch, each is a prefix of at most 8 bits
PUBLISHER: Final = "spark"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_BOOLEANS: Final = {"true": True, "false": False}
_MILLISECONDS_MAX: Final = NUMBER_MAX // 1000

Offsets = str | dict[TopicId, Position]  # "earliest", "latest", or a position in each topic


class ReadOptions(Struct, frozen=True, kw_only=True):
    """Options of a read."""

    access: Access
    topics: tuple[TopicId, ...]
    starting: Offsets
    ending: Offsets
    since: int  # microseconds since the epoch; earlier publications are skipped
    fails_on_data_loss: bool
    offsets_max: int | None  # per trigger
    partitions_min: int | None
    with_headers: bool

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> Self:
        """Check the options of a read."""
        given = _Given(options, READ_OPTIONS)
        if is_stream and given.text("endingOffsets") is not None:
            raise InputError('"endingOffsets" is for batch reads; a stream has no end')
        if not is_stream and given.text("maxOffsetsPerTrigger") is not None:
            raise InputError('"maxOffsetsPerTrigger" is for streams; a batch reads everything')
        topics = _topics(given)
        starting = _offsets(given, "startingOffsets", LATEST if is_stream else EARLIEST, topics)
        ending = _offsets(given, "endingOffsets", LATEST, topics)
        if not is_stream and starting == LATEST:
            raise InputError('"startingOffsets" of a batch read cannot be "latest"')
        if ending == EARLIEST:
            raise InputError('"endingOffsets" cannot be "earliest"')
        since = given.number("startingTimestamp", _MILLISECONDS_MAX)
        if since is not None and given.text("startingOffsets") is not None:
            raise InputError('give "startingOffsets" or "startingTimestamp", not both')
        return cls(
            access=_access(given),
            topics=topics,
            starting=EARLIEST if since is not None else starting,
            ending=ending,
            since=0 if since is None else 1000 * since,
            fails_on_data_loss=given.boolean("failOnDataLoss", default=True),
            offsets_max=given.number("maxOffsetsPerTrigger", NUMBER_MAX, first=1),
            partitions_min=given.number("minPartitions", PARTITIONS_MAX, first=1),
            with_headers=given.boolean("includeHeaders", default=False),
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
        given = _Given(options, WRITE_OPTIONS)
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


class _Given:
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


def _access(given: _Given) -> Access:
    """Return the cluster that the options name, else that of the environment or the context."""
    files = {name: given.text(name) for name in ("ca", "cert", "key")}
    return Access.resolve(given.text("supervisor"), **files)


def includes_headers(options: Mapping[str, str]) -> bool:
    """Return True if a read includes headers; check the names of all its options."""
    return _Given(options, READ_OPTIONS).boolean("includeHeaders", default=False)


def _topics(given: _Given) -> tuple[TopicId, ...]:
    text = given.text("subscribe")
    topics = [part.strip() for part in (text or "").split(",") if part.strip()]
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


def _offsets(given: _Given, name: str, default: str, topics: tuple[TopicId, ...]) -> Offsets:
    text = given.text(name)
    if text is None or text.lower() in (EARLIEST, LATEST):
        return default if text is None else text.lower()
    positions = parse_positions(text, name)
    if positions.keys() != set(topics):
        raise InputError(
            f'"{name}" has positions of {", ".join(sorted(positions))}, but "subscribe" names '
            f"{', '.join(topics)}; give one position for each of these topics"
        )
    return positions
