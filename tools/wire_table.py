"""Generator of the message table in docs/wire.md.

``python tools/wire_table.py`` prints it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from inspect import getdoc
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from msgspec.structs import FieldInfo
from msgspec.structs import fields as struct_fields

from skipring.core.batches import RecordBatch
from skipring.core.labels import Label
from skipring.core.peers import EdgeKind, Peer
from skipring.wire.codec import FORMATS
from skipring.wire.rpc import WIRE_TYPES, WireMessage, tag_of

HEADING: Final = ("tag", "message", "frame", "fields", "purpose")
# Types without a description in an annotation.
WORDS: Final[dict[object, str]] = {
    Label: "[position]",
    Peer: "[[position], node]",
    EdgeKind: " or ".join(f'"{kind.value}"' for kind in EdgeKind),
    bool: "bool",
    RecordBatch: "batch",
    tuple[RecordBatch, ...]: "batches",
}


def table_lines() -> list[str]:
    """Return the table in Markdown, one line for each message."""
    lines = [_line(HEADING), "|" + "---|" * len(HEADING)]
    return lines + [_line(_row(message_type)) for message_type in WIRE_TYPES]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(message_type: type[WireMessage]) -> tuple[str, ...]:
    return (
        str(tag_of(message_type)),
        f"`{message_type.__name__}`",
        FORMATS[message_type].frame_kind.name.lower(),
        "<br>".join(map(_field, struct_fields(message_type))),
        _purpose(message_type),
    )


def _field(field: FieldInfo) -> str:
    return f"`{field.name}`: {_words(field.type)}"


def _words(kind: Any) -> str:  # noqa: ANN401  (a type)
    """Return the description of a type."""
    if get_origin(kind) is Annotated:
        return str(kind.__metadata__[0].description)
    if get_origin(kind) in (Union, UnionType):
        return f"{_words(get_args(kind)[0])} or nil"
    return WORDS[kind]


def _purpose(message_type: type[WireMessage]) -> str:
    """Return the first paragraph of the docstring."""
    first = (getdoc(message_type) or "").split("\n\n")[0]
    return first.replace("\n", " ").replace("``", "`")


if __name__ == "__main__":
    sys.stdout.write("\n".join(table_lines()) + "\n")
