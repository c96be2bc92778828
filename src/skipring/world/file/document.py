"""Parsing of JSON text into a tree without loss of errors.

A part that the tree cannot represent becomes a value that no parser accepts, so the parser that
knows its place reports it.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from msgspec import Struct

from skipring.errors import WorldFormatError

FORMAT: Final = "skipring-world/1"


class RepeatedKey(Struct, frozen=True):
    """Placeholder for an object in which a key appears twice."""

    key: str


class OversizedNumber(Struct, frozen=True):
    """Placeholder for an integer with more digits than Python converts."""

    digits: int


def load(text: str | bytes) -> Any:  # noqa: ANN401  (JSON is anything)
    """Return the tree; raise WorldFormatError if the text is not JSON in UTF-8."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except UnicodeDecodeError as error:
        raise WorldFormatError(f"byte {error.start}: not UTF-8") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise WorldFormatError(f"{place}: not JSON ({error.msg})") from error
    except RecursionError as error:
        raise WorldFormatError("the file: lists and objects are nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | RepeatedKey:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
    return RepeatedKey(key)


def _integer(digits: str) -> int | OversizedNumber:
    try:
        return int(digits)
    except ValueError:  # the limit of sys.set_int_max_str_digits
        return OversizedNumber(len(digits.lstrip("-")))
