"""Cursor of a reader, and the start positions that an application can pass."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from msgspec import Struct

from skipring.core.limits import CHAIN_BYTES, EARLIER_CHAIN_BYTES, is_same_chain, shown
from skipring.core.peers import TopicId
from skipring.errors import CursorError, InputError
from skipring.order.gaps import Order
from skipring.order.saved_order import SavedOrder
from skipring.storage.store import LogStore
from skipring.storage.topic_log import SegmentLog

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

_CURSOR: Final = re.compile(
    r"c(?:2|(?P<ordered>3))\.(?P<store>[0-9a-f]{1,64})\.(?P<epoch>[0-9]{1,19})\.(?P<offset>[0-9]{1,19})"
    rf"\.(?P<chain>(?:[0-9a-f]{{{2 * EARLIER_CHAIN_BYTES}}}|[0-9a-f]{{{2 * CHAIN_BYTES}}}))"
    r"(?(ordered)\.(?P<order>[A-Za-z0-9_-]+))\.(?P<topic>.+)"
)
_CURSOR_OF_ANY_VERSION: Final = re.compile(r"c[0-9]+\.")
_INSTEAD: Final = 'use start="all" and skip the ids that you already have'


class Cursor(Struct, frozen=True):
    """Position in a topic in one data directory; publications before it were handed out.

    The chain value depends on all publications before it and on their order (decision 0043). The
    cursor of a reader with an order has its state, with the publications before the position that
    were not handed out (docs/ordering.md).

    >>> cursor = Cursor("5eed", "orders", 0, 42, bytes(12))
    >>> Cursor.parse(str(cursor)) == cursor
    True
    """

    store: str
    topic: TopicId
    epoch: int
    offset: int
    chain: bytes
    saved: SavedOrder | None = None  # of a reader in the order of arrival: None

    def __str__(self) -> str:
        place = f"{self.store}.{self.epoch}.{self.offset}.{self.chain.hex()}"
        if self.saved is None:
            return f"c2.{place}.{self.topic}"
        return f"c3.{place}.{self.saved}.{self.topic}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the cursor of a text; raise CursorError if the text is not a cursor."""
        match = _CURSOR.fullmatch(text)
        if match is None and text.startswith("c1."):
            raise CursorError(
                "the cursor was made by an earlier version, and does not show which publications "
                f"were before it; {_INSTEAD}"
            )
        if match is None:
            raise CursorError(
                f"not a cursor: {shown(text)}; use the unchanged text of subscription.cursor()"
            )
        numbers = int(match["epoch"]), int(match["offset"])
        saved = _saved_order(match["order"], offset=numbers[1]) if match["order"] else None
        return cls(match["store"], match["topic"], *numbers, bytes.fromhex(match["chain"]), saved)

    def check(self, store: LogStore | None, topic: TopicId, order: Order) -> None:
        """Raise CursorError if the cursor does not fit the store's log of a topic, or the order."""
        if self.saved is not None and self.saved.order is not order:
            raise CursorError(
                f'the cursor was made with order="{self.saved.order}"; '
                f"use this order, or {_INSTEAD}"
            )
        if store is None:
            raise CursorError(
                "a cursor points into a data directory, and this node keeps its publications in "
                f"memory; connect with the data_dir it came from, or {_INSTEAD}"
            )
        if self.topic != topic:
            raise CursorError(
                f"the cursor belongs to topic {shown(self.topic)}, not to {shown(topic)}; "
                f"use the cursor of this topic, or {_INSTEAD}"
            )
        if self.store != store.id:
            raise CursorError(
                "the cursor came from another data directory, where publications are in another "
                f"order; connect with that data_dir, or {_INSTEAD}"
            )
        if not self._fits(store.log(topic)):
            raise CursorError(
                "the data directory was restored from a copy, or has lost publications, since the "
                f"cursor was made; they may come back in another order; {_INSTEAD}"
            )

    def _fits(self, log: SegmentLog) -> bool:
        """Return True if the publications before the cursor are the same as when it was made."""
        if self.offset == 0:  # no publication is before it, in any epoch
            return True
        is_there = self.epoch == log.epoch and self.offset <= log.durable_end
        if not is_there:
            return False
        # Below ``low`` nothing is retained: the reader continues there, with all that is.
        return self.offset < log.low or is_same_chain(log.chain_at(self.offset), self.chain)


def _saved_order(text: str, offset: int) -> SavedOrder:
    """Return the state of an order; raise CursorError if it is invalid."""
    try:
        saved = SavedOrder.parse(text)
    except ValueError as error:
        why = str(error)
    else:
        if not saved.pending or saved.pending[-1].stop <= offset:
            return saved
        why = "it has publications behind its position"
    raise CursorError(
        f"the state of the order in the cursor is damaged ({why}); use the unchanged text of "
        f"subscription.cursor(), or {_INSTEAD}"
    )


# A text is "all", "new", one of their synonyms, or the text of a cursor.
Start = str | datetime | Cursor
SYNONYMS: Final = {"earliest": "all", "latest": "new"}  # the words of other log systems


def checked_start(start: object) -> Start:
    """Return a valid start, with a cursor's text parsed; raise InputError for any other value.

    A synonym is replaced by its word.
    """
    if isinstance(start, str):
        start = SYNONYMS.get(start, start)
    if isinstance(start, str) and _CURSOR_OF_ANY_VERSION.match(start):
        return Cursor.parse(start)
    if isinstance(start, datetime) and start.utcoffset() is None:
        raise InputError(
            f"{start.isoformat()} has no time zone, so it is ambiguous; "
            "give it one, such as datetime.now(UTC)",
            parameter="start",
        )
    if start in ("all", "new") or isinstance(start, datetime | Cursor):
        return start
    raise InputError(
        'expected "all" or "new" (synonyms: "earliest", "latest"), a datetime with a time zone '
        f"or a cursor, got {shown(str(start))}",
        parameter="start",
    )
