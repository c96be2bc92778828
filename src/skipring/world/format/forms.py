"""Forms of values in a world file: their JSON types, and their conversion to values of the core.

Labels and prefixes are strings of 0 and 1, ids are hex, payloads base64. A publication is a batch:
the fields of its record, or a list of records. An error is one sentence that starts with the path
of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta, ValidationError, convert, defstruct
from msgspec.structs import replace

from skipring.core.batches import (
    BODY_BYTES_MAX,
    RECORDS_MAX,
    BatchRecord,
    Number,
    RecordBatch,
)
from skipring.core.labels import CIRCLE, Label, Word
from skipring.core.limits import (
    HEADERS_MAX,
    KEY_BYTES_MAX,
    LABEL_CHARACTERS_MAX,
    NODE_PATTERN,
    PAYLOAD_BYTES_MAX,
    shown,
)
from skipring.core.peers import NodeId, Peer, TopicId
from skipring.core.prefix import Prefix
from skipring.core.publications import ID_BITS, ID_BYTES
from skipring.core.summaries import DIGEST_BYTES, SHORT_BYTES, RangeSummary, Summary
from skipring.errors import WorldFormatError

REASON_CHARACTERS_MAX: Final = 160  # Guess: enough for a sentence with such a value.

Value = TypeVar("Value")


# -- conversion ------------------------------------------------------------------------------


class Form(type):
    """Type of a value in the file: ``base`` is its JSON type, ``make`` returns the core's value."""

    base: Any
    make: Callable[[Any, ValueReader], Any]

    def __instancecheck__(cls, instance: object) -> bool:
        """Return True: msgspec checks the result of ``make``, which is a value of the core."""
        return True


def form(base: object, make: Callable[[Any, ValueReader], Any]) -> Any:  # noqa: ANN401  (a type)
    """Return the form with this JSON type and conversion."""
    return Form("form", (), {"base": base, "make": staticmethod(make)})


def _refusal(reason: str, place: str) -> WorldFormatError:
    """Return the error of msgspec's message, with the paths of nested conversions joined."""
    what, *paths = reason.split(" - at `")
    for path in reversed(paths):
        place += path.rstrip("`").removeprefix("key` in `").removeprefix("$")
    printable = (c if c.isprintable() else ascii(c)[1:-1] for c in what[:REASON_CHARACTERS_MAX])
    return WorldFormatError(f"{place}: {''.join(printable)}")


class ValueReader:
    """Converter of a tree to values of the core; knows the topic and the nodes of the world."""

    def __init__(self, topic: TopicId = "", known: Iterable[NodeId] = ()) -> None:
        self.topic = topic
        self.known = frozenset(known)

    def read(self, value: object, kind: type[Value], place: str) -> Value:
        """Return the value at a place; raise WorldFormatError if it is invalid."""
        try:
            return convert(value, kind, dec_hook=self.parse)
        except (ValidationError, ValueError) as error:
            raise _refusal(str(error), place) from None

    def parse(self, form: Any, value: object) -> Any:  # noqa: ANN401  (depends on the form)
        """Return the value of a form; msgspec adds the path to a ValueError."""
        try:
            plain = convert(value, form.base, dec_hook=self.parse)
        except ValidationError as error:
            raise ValueError(str(error)) from None
        return form.make(plain, self)


def hex_of(*sizes: int) -> Any:  # noqa: ANN401  (a type)
    """Return the form of bytes in hex, of one of these sizes."""
    digits = "|".join(f"[0-9A-Fa-f]{{{2 * size}}}" for size in sizes)
    pattern = Meta(pattern=rf"\A(?:{digits})\Z")
    return form(Annotated[str, pattern], lambda text, _: bytes.fromhex(text))


def array_of(*items: Any) -> Any:  # noqa: ANN401  (types)
    """Return the type of an array with these members; ``...`` repeats the first."""
    return tuple[items]  # type: ignore[valid-type]


def packed(item: object, pack: Callable[[Any], bytes] = b"".join) -> Any:  # noqa: ANN401
    """Return the form of an array whose members are packed into bytes."""
    return form(array_of(item, ...), lambda items, _: pack(items))


def whole_text(text: str, _: ValueReader) -> str:
    """Return a text that UTF-8 can encode; JSON can also escape lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"lone surrogate in {shown(text)}"
        raise ValueError(message) from None
    return text


def _word(number: int, _: ValueReader) -> int:
    if number >= CIRCLE:
        message = f"Expected `int` <= {CIRCLE - 1}"
        raise ValueError(message)
    return number


def _known(node: NodeId, reader: ValueReader) -> NodeId:
    if node not in reader.known:
        message = f"{shown(node)} is neither in subscribers nor in crashed"
        raise ValueError(message)
    return node


def _usable_label(bits: str, _: ValueReader) -> Label | None:
    """Return a label; None if l never produces it or if it exceeds 64 bits."""
    try:
        return Label.parse(bits)
    except ValueError:
        return None


def _usable_peer(pair: tuple[Label | None, NodeId | None], _: ValueReader) -> Peer | None:
    """Return a reference, or None if its label or its node is missing (B3)."""
    label, node = pair
    return Peer(label, node) if label is not None and node is not None else None


def _claim(fields: Any, _: ValueReader) -> RangeSummary:  # noqa: ANN401  (a derived struct)
    """Return a claim; its labels are written in full, so each must begin with the cover."""
    for number, (label, digest) in enumerate(fields.nodes):
        if not fields.cover.covers(label):
            message = f"the label does not begin with the cover - at `$.nodes[{number}][0]`"
            raise ValueError(message)
        if len(digest) != len(fields.nodes[0][1]):
            message = (
                f"the digest and the previous one differ in length - at `$.nodes[{number}][1]`"
            )
            raise ValueError(message)
    nodes = [Summary(label, digest) for label, digest in fields.nodes]
    return RangeSummary.make(fields.cover, nodes, fields.leaves)


BITS: Final = Annotated[str, Meta(pattern=r"\A[01]*\Z", max_length=LABEL_CHARACTERS_MAX)]
NAME: Final = Annotated[str, Meta(pattern=rf"\A{NODE_PATTERN}\Z")]
TEXT: Final = form(str, whole_text)
WORD: Final = form(Word, _word)
KNOWN: Final = form(str, _known)
LABEL: Final = form(BITS, _usable_label)
PREFIX: Final = form(
    Annotated[str, Meta(pattern=r"\A[01]*\Z", max_length=ID_BITS)],
    lambda bits, _: Prefix.parse(bits),
)
PEER: Final = form(array_of(LABEL | None, KNOWN | None), _usable_peer)
SHORT: Final = hex_of(SHORT_BYTES)
CLAIM: Final = form(
    defstruct(
        "Claim",
        [
            ("cover", PREFIX),
            ("nodes", array_of(array_of(PREFIX, hex_of(SHORT_BYTES, DIGEST_BYTES)), ...), ()),
            ("leaves", array_of(SHORT, ...), ()),
        ],
        forbid_unknown_fields=True,
    ),
    _claim,
)


def map_of(hint: Any, key: Any, value: Any) -> Any:  # noqa: ANN401  (types)
    """Return the form of an object; skip keys that are unusable labels."""

    def make(entries: dict[str, Any], reader: ValueReader) -> dict[Any, Any]:
        made = {}
        for text, each in entries.items():
            name = reader.parse(key_form, text)
            try:
                content = reader.parse(value_form, each)
            except ValueError as error:
                message = f"{error} - at `$[{shown(text)}]`"
                raise ValueError(message) from None
            if name is not None:
                made[name] = content
        return made

    key_form = LABEL if hint is Label else form(key, _same)
    value_form = form(value, _same)
    return form(dict[str, Any], make)


def _same(value: Value, _: ValueReader) -> Value:
    return value


# -- publications ----------------------------------------------------------------------------

_PAYLOAD: Final = Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)]
_RECORD: Final[tuple[tuple[str, Any, Any], ...]] = (
    ("time", Number, 0),
    ("key", Annotated[bytes, Meta(max_length=KEY_BYTES_MAX)] | None, None),
    ("headers", map_of(str, TEXT, TEXT), {}),
)
_CONTENTS: Final = ("payload", "records", "body")  # a batch has one of these, or is opaque


def _record(fields: Any, _: ValueReader) -> BatchRecord:  # noqa: ANN401  (a derived struct)
    if len(fields.headers) > HEADERS_MAX:
        message = f"{len(fields.headers)} headers exceed the limit of {HEADERS_MAX}"
        raise ValueError(message)
    return BatchRecord(fields.payload, fields.time, fields.key, fields.headers)


def _batch(fields: Any, reader: ValueReader) -> RecordBatch:  # noqa: ANN401  (a derived struct)
    """Return a batch; a wrong id stays (T12), a missing one follows from the fields."""
    records = _records(fields, reader)
    batch = RecordBatch(
        fields.publisher, fields.seq, fields.count or 1, fields.body or b"", fields.unordered
    )
    if records:
        batch = RecordBatch.of(
            records,
            publisher=batch.publisher,
            first=batch.first,
            topic=reader.topic,
            unordered=batch.unordered,
        )
    return replace(batch, id=fields.id) if fields.id else batch.with_id(reader.topic)


def _records(fields: Any, reader: ValueReader) -> tuple[BatchRecord, ...]:  # noqa: ANN401
    """Return the records of a batch; none if it is opaque or has a body."""
    given = [name for name in _CONTENTS if getattr(fields, name) is not None]
    records: tuple[BatchRecord, ...] = fields.records or ()
    problem = None
    if len(given) > 1:
        problem = f"a publication has {given[0]} or {given[1]}, not both"
    elif fields.payload is not None:
        records = (_record(fields, reader),)
    elif fields.time or fields.key is not None or fields.headers:
        problem = "time, key and headers without a payload"
    if records and fields.count not in (None, len(records)):
        problem = f"a count of {fields.count} with {len(records)} records"
    if problem is not None:
        raise ValueError(problem)
    return records


_COUNT: Final = Annotated[int, Meta(ge=1, le=RECORDS_MAX)]
_SOME_RECORDS: Final = Annotated[
    array_of(
        form(
            defstruct("RecordFile", [("payload", _PAYLOAD), *_RECORD], forbid_unknown_fields=True),
            _record,
        ),
        ...,
    ),
    Meta(min_length=1, max_length=RECORDS_MAX),
]
BATCH: Final = form(
    defstruct(
        "BatchFile",
        [
            ("publisher", NAME),
            ("seq", Number),
            ("payload", _PAYLOAD | None, None),
            *_RECORD,
            ("records", _SOME_RECORDS | None, None),
            ("count", _COUNT | None, None),
            ("body", Annotated[bytes, Meta(max_length=BODY_BYTES_MAX)] | None, None),
            ("unordered", bool, False),
            ("id", hex_of(ID_BYTES) | None, None),
        ],
        forbid_unknown_fields=True,
    ),
    _batch,
)
