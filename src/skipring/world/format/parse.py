"""Reader of world files: a snapshot, or an error with the path of the invalid value.

msgspec converts the JSON to structs whose fields are those of the core's states and messages. A
``_Form`` describes each core type whose JSON form differs: labels and prefixes are strings
of 0 and 1, ids are hex, payloads base64. An error is one sentence that starts with the path of the
value.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from msgspec import NODEFAULT, Meta, Struct, ValidationError, convert, defstruct
from msgspec.structs import FieldInfo

from skipring.core.labels import CIRCLE, Label, Word
from skipring.core.log_messages import FetchLog, LogInfo, LogPage, Refused
from skipring.core.messages import MESSAGE_TYPES, CheckHeld, Held, Hops, IHave, Want
from skipring.core.peers import SUPERVISOR, NodeId, Peer, TopicId
from skipring.core.prefix import Prefix
from skipring.core.publications import ID_BITS, ID_BYTES, Publication
from skipring.core.state import (
    LogExtent,
    SubscriberMemory,
    SubscriberState,
    SupervisorMemory,
    SupervisorState,
)
from skipring.core.summaries import DIGEST_BYTES, SHORT_BYTES, RangeSummary, Summary
from skipring.errors import WorldFormatError
from skipring.world.format.render import OBJECTS, REQUIRED, fields_of
from skipring.world.snapshot import Parcel, Snapshot

LABEL_CHARACTERS_MAX: Final = 4096  # Limit: bounds corrupted labels too.
TOPIC_BYTES_MAX: Final = 255  # Limit: the same as on the wire.
SHOWN_CHARACTERS_MAX: Final = 40  # Guess: enough to recognise a value in a sentence.
REASON_CHARACTERS_MAX: Final = 160  # Guess: enough for a sentence with such a value.

Value = TypeVar("Value")


# -- JSON ----------------------------------------------------------------------------------


def _load(text: str | bytes) -> object:
    """Return the tree with sorted keys: their order must not affect a simulation."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        tree: object = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except UnicodeDecodeError as error:
        raise WorldFormatError(f"byte {error.start}: not UTF-8") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise WorldFormatError(f"{place}: not JSON ({error.msg})") from error
    except RecursionError as error:
        raise WorldFormatError("$: lists and objects are nested too deeply") from error
    return tree


def _object(pairs: list[tuple[str, Any]]) -> object:
    made = dict(sorted(pairs, key=lambda pair: pair[0]))
    if len(made) == len(pairs):
        return made
    ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
    return _unreadable(f"object with the key {_shown(key)} twice")


def _integer(digits: str) -> object:
    try:
        return int(digits)
    except ValueError:  # the limit of sys.set_int_max_str_digits
        return _unreadable(f"number of {len(digits.lstrip('-'))} digits")


def _unreadable(description: str) -> object:
    """Return a value that no type accepts; msgspec reports the name of its class."""
    return type(description, (), {})()


def _shown(text: str) -> str:
    """Shorten a text to a few printable characters."""
    short = ascii(text[:SHOWN_CHARACTERS_MAX])
    return short if len(text) <= SHOWN_CHARACTERS_MAX else short + "..."


def _refusal(reason: str, place: str) -> WorldFormatError:
    """Return the error of msgspec's message, with the paths of nested conversions joined."""
    what, *paths = reason.split(" - at `")
    for path in reversed(paths):
        place += path.rstrip("`").removeprefix("key` in `").removeprefix("$")
    shown = (c if c.isprintable() else ascii(c)[1:-1] for c in what[:REASON_CHARACTERS_MAX])
    return WorldFormatError(f"{place}: {''.join(shown)}")


# -- forms of values -------------------------------------------------------------------------


class _Form(type):
    """Type of a value in the file: ``base`` is its JSON type, ``make`` returns the core's value."""

    base: Any
    make: Callable[[Any, _Reader], Any]

    def __instancecheck__(cls, instance: object) -> bool:
        """Return True: msgspec checks the result of ``make``, which is a value of the core."""
        return True


def _form(base: object, make: Callable[[Any, _Reader], Any]) -> Any:  # noqa: ANN401  (a type)
    return _Form("form", (), {"base": base, "make": staticmethod(make)})


class _Reader:
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


def _hex(*sizes: int) -> Any:  # noqa: ANN401  (a type)
    digits = "|".join(f"[0-9A-Fa-f]{{{2 * size}}}" for size in sizes)
    pattern = Meta(pattern=rf"\A(?:{digits})\Z")
    return _form(Annotated[str, pattern], lambda text, _: bytes.fromhex(text))


def _array(*items: Any) -> Any:  # noqa: ANN401  (types)
    """Return the type of an array with these members; ``...`` repeats the first."""
    return tuple[items]  # type: ignore[valid-type]


def _packed(item: object, pack: Callable[[Any], bytes] = b"".join) -> Any:  # noqa: ANN401
    return _form(_array(item, ...), lambda items, _: pack(items))


def _whole(text: str, _: _Reader) -> str:
    """Return a text that UTF-8 can encode; JSON can also escape lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"lone surrogate in {_shown(text)}"
        raise ValueError(message) from None
    return text


def _topic(text: str, reader: _Reader) -> TopicId:
    size = len(_whole(text, reader).encode())
    if not 1 <= size <= TOPIC_BYTES_MAX:
        message = f"a topic has 1 to {TOPIC_BYTES_MAX} bytes, this one has {size}"
        raise ValueError(message)
    if any(unicodedata.category(character) == "Cc" for character in text):
        message = f"a topic has no control characters, got {_shown(text)}"
        raise ValueError(message)
    return text


def _word(number: int, _: _Reader) -> int:
    if number >= CIRCLE:
        message = f"Expected `int` <= {CIRCLE - 1}"
        raise ValueError(message)
    return number


def _declared(node: NodeId, _: _Reader) -> NodeId:
    if node == SUPERVISOR:
        message = f"no subscriber can be called {SUPERVISOR!r}"
        raise ValueError(message)
    return node


def _known(node: NodeId, reader: _Reader) -> NodeId:
    if node not in reader.known:
        message = f"{_shown(node)} is neither in subscribers nor in crashed"
        raise ValueError(message)
    return node


def _usable_label(bits: str, _: _Reader) -> Label | None:
    """Return a label; None if l never produces it or if it exceeds 64 bits."""
    try:
        return Label.parse(bits)
    except ValueError:
        return None


def _usable_peer(pair: tuple[Label | None, NodeId | None], _: _Reader) -> Peer | None:
    """Return a reference, or None if its label or its node is missing (B3)."""
    label, node = pair
    return Peer(label, node) if label is not None and node is not None else None


def _claim(fields: Any, _: _Reader) -> RangeSummary:  # noqa: ANN401  (a derived struct)
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


_BITS: Final = Annotated[str, Meta(pattern=r"\A[01]*\Z", max_length=LABEL_CHARACTERS_MAX)]
_NAME: Final = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z")]
_TEXT: Final = _form(str, _whole)
_WORD: Final = _form(Word, _word)
_KNOWN: Final = _form(str, _known)
_LABEL: Final = _form(_BITS, _usable_label)
_PREFIX: Final = _form(
    Annotated[str, Meta(pattern=r"\A[01]*\Z", max_length=ID_BITS)],
    lambda bits, _: Prefix.parse(bits),
)
_SHORT: Final = _hex(SHORT_BYTES)
_CLAIM: Final = _form(
    defstruct(
        "Claim",
        [
            ("cover", _PREFIX),
            ("nodes", _array(_array(_PREFIX, _hex(SHORT_BYTES, DIGEST_BYTES)), ...), ()),
            ("leaves", _array(_SHORT, ...), ()),
        ],
        forbid_unknown_fields=True,
    ),
    _claim,
)


def _map(hint: Any, key: Any, value: Any) -> Any:  # noqa: ANN401  (types)
    """Return the form of an object; skip keys that are unusable labels."""

    def make(entries: dict[str, Any], reader: _Reader) -> dict[Any, Any]:
        made = {}
        for text, each in entries.items():
            name = reader.parse(key_form, text)
            try:
                content = reader.parse(value_form, each)
            except ValueError as error:
                message = f"{error} - at `$[{_shown(text)}]`"
                raise ValueError(message) from None
            if name is not None:
                made[name] = content
        return made

    key_form = _LABEL if hint is Label else _form(key, _same)
    value_form = _form(value, _same)
    return _form(dict[str, Any], make)


def _same(value: Value, _: _Reader) -> Value:
    return value


# -- structs of the core ---------------------------------------------------------------------

_SHORT_IDS: Final = _packed(_SHORT)
_HOPS: Final = _packed(Hops, bytes)
_IDS: Final = _packed(_hex(ID_BYTES))
_BYTES: Final = _form(
    Annotated[str, Meta(pattern=r"\A(?:[0-9A-Fa-f]{2})*\Z")], lambda text, _: bytes.fromhex(text)
)

# Fields whose type in the core does not determine their form.
_FIELDS: Final[Mapping[type[Struct], Mapping[str, Any]]] = {
    IHave: {"ids": _SHORT_IDS, "hops": _HOPS},
    Want: {"ids": _SHORT_IDS, "hops": _HOPS},
    CheckHeld: {"ids": _IDS},
    Held: {"held": _IDS, "missing": _IDS},
    LogInfo: {"store": _TEXT, "digests": _array(_BYTES, ...), "chain": _BYTES},
    FetchLog: {"store": _TEXT},
    LogPage: {"ids": _BYTES, "publications": _BYTES},
    Refused: {"reason": _TEXT},
    LogExtent: {"store": _TEXT},
    Publication: {"id": _hex(ID_BYTES) | None, "headers": _map(str, _TEXT, _TEXT)},
    SupervisorState: {"database": _array(_array(_BITS, _KNOWN | None), ...)},
}
_IN_MESSAGES: Final = {int: _WORD, str: _KNOWN}
_IN_STATES: Final = {int: int, str: _KNOWN}
_IN_MEMORY: Final = {int: int, str: _NAME}  # memory may name nodes that have left


def _file_type(hint: Any, plain: Mapping[type, Any]) -> Any:  # noqa: ANN401, PLR0911  (types)
    """Return the type in the file of a field of the core; ``plain`` has those of int and str."""
    if hint == Word:
        return _WORD
    if hint in plain:
        return plain[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        if args[0] is bytes:
            return _hex(args[1].max_length)
        inner = _file_type(args[0], plain)
        return hint if inner is int else inner
    if origin in (Union, UnionType):
        return Union[tuple(_LABEL if a is Label else _file_type(a, plain) for a in args)]  # noqa: UP007
    if origin is tuple:
        return _array(*(a if a is Ellipsis else _file_type(a, plain) for a in args))
    if origin is dict:
        return _map(args[0], _file_type(args[0], plain), _file_type(args[1], plain))
    return _leaf(hint, plain)


def _leaf(kind: Any, plain: Mapping[type, Any]) -> Any:  # noqa: ANN401  (a type)
    if kind in _LEAVES:
        return _LEAVES[kind]
    if not issubclass(kind, Struct):
        return kind
    inner = _IN_MEMORY if kind in (SubscriberMemory, SupervisorMemory) else plain
    return _form(_mirror(kind, inner), lambda fields, reader: _made(kind, fields, reader))


def _mirror(kind: type[Struct], plain: Mapping[type, Any], **options: Any) -> type[Struct]:  # noqa: ANN401
    """Return a struct with the fields of a core struct, in the types of the file."""
    special, required = _FIELDS.get(kind, {}), REQUIRED.get(kind, frozenset())
    mirrored = []
    for field in fields_of(kind):
        file_type = special.get(field.name) or _file_type(field.type, plain)
        default = () if field.required or field.name in required else (_default(field),)
        mirrored.append((field.name, file_type, *default))
    array_like = kind.__struct_config__.array_like and kind not in OBJECTS
    return defstruct(
        kind.__name__,
        mirrored,
        array_like=array_like,
        kw_only=not array_like,
        forbid_unknown_fields=True,
        **options,
    )


def _default(field: FieldInfo) -> Any:  # noqa: ANN401  (of any field)
    return field.default if field.default is not NODEFAULT else field.default_factory()


def _made(kind: type[Struct], fields: Struct, _: _Reader) -> Struct:
    return kind(**{name: getattr(fields, name) for name in fields.__struct_fields__})


def _publication(fields: Any, reader: _Reader) -> Publication:  # noqa: ANN401  (derived)
    """Return a publication; a wrong id stays (T12), a missing one follows from the fields."""
    values = {name: getattr(fields, name) for name in fields.__struct_fields__}
    named = Publication(**values | {"id": fields.id or b""})
    return named if fields.id else named.with_id(reader.topic)


def _canonical(label: Label | None, _: _Reader) -> Label:
    if label is None:
        message = "l does not produce this label"
        raise ValueError(message)
    return label


_LEAVES: Final[dict[type, Any]] = {
    Label: _form(_LABEL, _canonical),
    Prefix: _PREFIX,
    RangeSummary: _CLAIM,
    Peer: _form(_array(_LABEL | None, _KNOWN | None), _usable_peer),
}
_LEAVES[Publication] = _form(_mirror(Publication, _IN_MEMORY), _publication)
_CORE: Final = {
    _mirror(kind, _IN_MESSAGES, tag=kind.__name__, tag_field="type"): kind for kind in MESSAGE_TYPES
}


def _message(fields: Struct, reader: _Reader) -> Struct | None:
    """Return a message, or None if it carries a reference without a usable label or node."""
    kind = _CORE[type(fields)]
    peers = [field.name for field in fields_of(kind) if field.type is Peer]
    if any(getattr(fields, name) is None for name in peers):
        return None
    return _made(kind, fields, reader)


_SUPERVISOR: Final = _leaf(SupervisorState, _IN_STATES)
_SUBSCRIBER: Final = _leaf(SubscriberState, _IN_STATES)
_PARCEL: Final = defstruct(
    "ParcelFile",
    [("to", _KNOWN), ("message", _form(Union[tuple(_CORE)], _message))],  # noqa: UP007
    forbid_unknown_fields=True,
)
_DECLARED: Final = _form(_NAME, _declared)
_WORLD: Final = defstruct(
    "WorldFile",
    [
        ("format", str),
        ("topic", _form(str, _topic)),
        ("supervisor", Any),
        ("subscribers", _map(str, _DECLARED, Any)),
        ("crashed", _array(_DECLARED, ...), ()),
        ("channels", tuple[Any, ...], ()),
    ],
    forbid_unknown_fields=True,
)


class _Header(Struct):
    """Header of a file, checked before the keys, which depend on the format."""

    format: Literal["skipring-world/1"]


def parse_world(text: str | bytes) -> Snapshot:
    """Return the state in a world file; raise WorldFormatError if the text is not a world file."""
    tree = _load(text)
    _Reader().read(tree, _Header, "$")
    world: Any = _Reader().read(tree, _WORLD, "$")
    for node in world.subscribers:
        if node in world.crashed:
            raise WorldFormatError(f"$.subscribers.{node}: the node is also in crashed")
    reader = _Reader(world.topic, {SUPERVISOR, *world.crashed, *world.subscribers})
    parcels: list[Any] = [
        reader.read(value, _PARCEL, f"$.channels[{i}]") for i, value in enumerate(world.channels)
    ]
    return Snapshot(
        topic=world.topic,
        supervisor=reader.read(world.supervisor, _SUPERVISOR, "$.supervisor"),
        subscribers={
            node: reader.read(state, _SUBSCRIBER, f"$.subscribers.{node}")
            for node, state in world.subscribers.items()
        },
        crashed=world.crashed,
        channels=tuple(
            Parcel(parcel.to, parcel.message) for parcel in parcels if parcel.message is not None
        ),
    )
