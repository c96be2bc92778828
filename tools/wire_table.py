"""Table of all messages in docs/wire.md.

``python tools/wire_table.py`` prints it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from inspect import getdoc
from typing import Final

from msgspec.structs import FieldInfo
from msgspec.structs import fields as struct_fields

from skipring.wire.fields import FieldKind
from skipring.wire.formats import FORMATS, tag_of
from skipring.wire.rpc import WIRE_TYPES, WireMessage

HEADING: Final = ("tag", "message", "frame", "fields", "what it is for")


def table_lines() -> list[str]:
    """Return the table in Markdown, one line for each message."""
    lines = [_line(HEADING), "|" + "---|" * len(HEADING)]
    return lines + [_line(_row(message_type)) for message_type in WIRE_TYPES]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(message_type: type[WireMessage]) -> tuple[str, ...]:
    form = FORMATS[message_type]
    described = [_field(field, form.fields) for field in struct_fields(message_type)]
    return (
        str(tag_of(message_type)),
        f"`{message_type.__name__}`",
        form.frame_kind.name.lower(),
        "<br>".join(described),
        _purpose(message_type),
    )


def _field(field: FieldInfo, kinds: Mapping[str, FieldKind]) -> str:
    return f"`{field.name}`: {kinds[field.name].words}"


def _purpose(message_type: type[WireMessage]) -> str:
    """Return the first paragraph of the docstring."""
    first = (getdoc(message_type) or "").split("\n\n")[0]
    return first.replace("\n", " ").replace("``", "`")


if __name__ == "__main__":
    sys.stdout.write("\n".join(table_lines()) + "\n")
