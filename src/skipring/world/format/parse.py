"""Reader of world files: a snapshot, or an error with the path of the invalid value.

msgspec converts the JSON to structs whose fields are those of the core's states and messages. A
form (``forms``) describes each core type whose JSON type differs.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from msgspec import NODEFAULT, Meta, Struct, defstruct
from msgspec.structs import FieldInfo

from skipring.core.batches import RecordBatch
from skipring.core.labels import Label, Word
from skipring.core.limits import TOPIC_BYTES_MAX, shown
from skipring.core.log_messages import FetchLog, LogInfo, Refused
from skipring.core.messages import MESSAGE_TYPES, CheckHeld, Held, Hops, IHave, Want
from skipring.core.peers import SUPERVISOR, NodeId, Peer, TopicId
from skipring.core.prefix import Prefix
from skipring.core.publications import ID_BYTES
from skipring.core.state import (
    LogExtent,
    SubscriberMemory,
    SubscriberState,
    SupervisorMemory,
    SupervisorState,
)
from skipring.core.summaries import RangeSummary
from skipring.errors import WorldFormatError
from skipring.world.format.forms import (
    BATCH,
    BITS,
    CLAIM,
    KNOWN,
    LABEL,
    NAME,
    PEER,
    PREFIX,
    SHORT,
    TEXT,
    WORD,
    ValueReader,
    array_of,
    form,
    hex_of,
    map_of,
    packed,
    whole_text,
)
from skipring.world.format.render import OBJECTS, REQUIRED, fields_of
from skipring.world.snapshot import Clocks, Parcel, Snapshot

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
    return _unreadable(f"object with the key {shown(key)} twice")


def _integer(digits: str) -> object:
    try:
        return int(digits)
    except ValueError:  # the limit of sys.set_int_max_str_digits
        return _unreadable(f"number of {len(digits.lstrip('-'))} digits")


def _unreadable(description: str) -> object:
    """Return a value that no type accepts; msgspec reports the name of its class."""
    return type(description, (), {})()


# -- structs of the core ---------------------------------------------------------------------

_SHORT_IDS: Final = packed(SHORT)
_HOPS: Final = packed(Hops, bytes)
_IDS: Final = packed(hex_of(ID_BYTES))
_BYTES: Final = form(
    Annotated[str, Meta(pattern=r"\A(?:[0-9A-Fa-f]{2})*\Z")], lambda text, _: bytes.fromhex(text)
)

# Fields whose type in the core does not determine their form.
_FIELDS: Final[Mapping[type[Struct], Mapping[str, Any]]] = {
    IHave: {"ids": _SHORT_IDS, "hops": _HOPS},
    Want: {"ids": _SHORT_IDS, "hops": _HOPS},
    CheckHeld: {"ids": _IDS},
    Held: {"held": _IDS, "missing": _IDS},
    LogInfo: {"store": TEXT, "digests": array_of(_BYTES, ...), "chain": _BYTES},
    FetchLog: {"store": TEXT},
    Refused: {"reason": TEXT},
    LogExtent: {"store": TEXT},
    SupervisorState: {"database": array_of(array_of(BITS, KNOWN | None), ...)},
}
_IN_MESSAGES: Final = {int: WORD, str: KNOWN}
_IN_STATES: Final = {int: int, str: KNOWN}
_IN_MEMORY: Final = {int: int, str: NAME}  # memory may name nodes that have left


def _file_type(hint: Any, plain: Mapping[type, Any]) -> Any:  # noqa: ANN401, PLR0911  (types)
    """Return the type of a field of core in the file; ``plain`` maps int and str to theirs."""
    if hint == Word:
        return WORD
    if hint in plain:
        return plain[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        if args[0] is bytes:
            return hex_of(args[1].max_length, *([] if args[1].min_length else [0]))
        inner = _file_type(args[0], plain)
        return hint if inner is int else inner
    if origin in (Union, UnionType):
        return Union[tuple(LABEL if a is Label else _file_type(a, plain) for a in args)]  # noqa: UP007
    if origin is tuple:
        return array_of(*(a if a is Ellipsis else _file_type(a, plain) for a in args))
    if origin is dict:
        return map_of(args[0], _file_type(args[0], plain), _file_type(args[1], plain))
    return _leaf(hint, plain)


def _leaf(kind: Any, plain: Mapping[type, Any]) -> Any:  # noqa: ANN401  (a type)
    if kind in _LEAVES:
        return _LEAVES[kind]
    if not issubclass(kind, Struct):
        return kind
    inner = _IN_MEMORY if kind in (SubscriberMemory, SupervisorMemory) else plain
    return form(_mirror(kind, inner), lambda fields, reader: _made(kind, fields, reader))


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


def _made(kind: type[Struct], fields: Struct, _: ValueReader) -> Struct:
    return kind(**{name: getattr(fields, name) for name in fields.__struct_fields__})


def _canonical(label: Label | None, _: ValueReader) -> Label:
    if label is None:
        message = "l does not produce this label"
        raise ValueError(message)
    return label


_LEAVES: Final[dict[type, Any]] = {
    Label: form(LABEL, _canonical),
    RecordBatch: BATCH,
    Prefix: PREFIX,
    RangeSummary: CLAIM,
    Peer: PEER,
}
_CORE: Final = {
    _mirror(kind, _IN_MESSAGES, tag=kind.__name__, tag_field="type"): kind for kind in MESSAGE_TYPES
}


def _message(fields: Struct, reader: ValueReader) -> Struct | None:
    """Return a message, or None if it carries a reference without a usable label or node."""
    kind = _CORE[type(fields)]
    peers = [field.name for field in fields_of(kind) if field.type is Peer]
    if any(getattr(fields, name) is None for name in peers):
        return None
    return _made(kind, fields, reader)


_SUPERVISOR: Final = _leaf(SupervisorState, _IN_STATES)
_CLOCKS: Final = _leaf(Clocks, _IN_MEMORY)
_SUBSCRIBER: Final = _leaf(SubscriberState, _IN_STATES)
_PARCEL: Final = defstruct(
    "ParcelFile",
    [("to", KNOWN), ("message", form(Union[tuple(_CORE)], _message))],  # noqa: UP007
    forbid_unknown_fields=True,
)


def _topic(text: str, reader: ValueReader) -> TopicId:
    size = len(whole_text(text, reader).encode())
    if not 1 <= size <= TOPIC_BYTES_MAX:
        message = f"a topic has 1 to {TOPIC_BYTES_MAX} bytes, this one has {size}"
        raise ValueError(message)
    if any(unicodedata.category(character) == "Cc" for character in text):
        message = f"a topic has no control characters, got {shown(text)}"
        raise ValueError(message)
    return text


def _declared(node: NodeId, _: ValueReader) -> NodeId:
    if node == SUPERVISOR:
        message = f"no subscriber can be called {SUPERVISOR!r}"
        raise ValueError(message)
    return node


_DECLARED: Final = form(NAME, _declared)
_WORLD: Final = defstruct(
    "WorldFile",
    [
        ("format", str),
        ("topic", form(str, _topic)),
        ("supervisor", Any),
        ("subscribers", map_of(str, _DECLARED, Any)),
        ("crashed", array_of(_DECLARED, ...), ()),
        ("channels", tuple[Any, ...], ()),
        ("clocks", Any, {}),
    ],
    forbid_unknown_fields=True,
)


class _Header(Struct):
    """Header of a file, checked before the keys, which depend on the format."""

    format: Literal["skipring-world/1"]


def parse_world(text: str | bytes) -> Snapshot:
    """Return the state in a world file; raise WorldFormatError if the text is not a world file."""
    tree = _load(text)
    ValueReader().read(tree, _Header, "$")
    world: Any = ValueReader().read(tree, _WORLD, "$")
    for node in world.subscribers:
        if node in world.crashed:
            raise WorldFormatError(f"$.subscribers.{node}: the node is also in crashed")
    reader = ValueReader(world.topic, {SUPERVISOR, *world.crashed, *world.subscribers})
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
        clocks=reader.read(world.clocks, _CLOCKS, "$.clocks"),
        channels=tuple(
            Parcel(parcel.to, parcel.message) for parcel in parcels if parcel.message is not None
        ),
    )
