"""Transfers of histories: the sessions and pages that one subscriber sends and receives now.

No other session transfers the same publications meanwhile (T8).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import Final

from skipring.core.batches import RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Outbox
from skipring.core.peers import NodeId
from skipring.core.replica import Replica
from skipring.core.state import TransferState

READ_AHEAD_MIN: Final = 16
READ_AHEAD_MAX: Final = 4096  # Guess: 1 MiB of small batches.


class TransferTracker:
    """Histories that one subscriber sends or receives."""

    __slots__ = (
        "_config",
        "_received_ticks",
        "_rest_ticks",
        "_served",
        "_source",
        "_source_ticks",
    )

    def __init__(self, config: ProtocolConfig) -> None:
        self._config = config
        self._source: NodeId | None = None  # sender; None during a backfill
        self._source_ticks = 0  # ticks left to wait for the next part
        self._received_ticks = 0  # ticks in a row with a history under way
        self._rest_ticks = 0  # ticks left in which histories block no session
        # Receiver -> session of its history, ticks to its expiry; None takes less memory than {}.
        self._served: dict[NodeId, tuple[int, int]] | None = None

    @property
    def is_receiving(self) -> bool:
        """Return True while a history arrives; other sessions wait until it ends."""
        return self._source_ticks > 0

    @property
    def is_reading(self) -> bool:
        """Return True during a backfill, which reads from several sources at once."""
        return self.is_receiving and self._source is None

    def on_tick(self) -> None:
        """Count one tick; end histories that have stalled or lasted too long."""
        if not (self._source_ticks or self._rest_ticks or self._received_ticks or self._served):
            return  # the usual case
        # Memory may be corrupted: clamp counters to their valid range.
        ticks_max = self._config.history_ticks
        self._source_ticks = max(min(self._source_ticks, ticks_max) - 1, 0)
        self._rest_ticks = max(min(self._rest_ticks, self._config.history_rest_ticks) - 1, 0)
        self._received_ticks = max(self._received_ticks, 0) + 1 if self.is_receiving else 0
        if self._received_ticks >= self._config.history_ticks_max:
            self._source_ticks = self._received_ticks = 0
            self._rest_ticks = self._config.history_rest_ticks
        self._served = {
            node: (session, min(ticks, ticks_max) - 1)
            for node, (session, ticks) in (self._served or {}).items()
            if ticks > 1
        } or None

    def on_sent(self, to: NodeId, session: int, count: int) -> None:
        """Record the number of publications sent in a reply; more than the limit is a history."""
        if count > self._config.repair_announce_max:
            self._served = (self._served or {}) | {to: (session, self._config.history_ticks)}

    def on_received(self, sender: NodeId | None, count: int, *, is_last: bool) -> None:
        """Record the number of new publications in a message; more than the limit is a history."""
        is_history = count > self._config.repair_announce_max
        if is_history and sender is not None and self._rest_ticks == 0:
            self._source, self._source_ticks = sender, self._config.history_ticks
        if is_last and sender == self._source:
            self._source_ticks = 0

    def on_page(self, *, is_last: bool) -> None:
        """Record a page of a backfill, which has several sources."""
        if self._rest_ticks > 0:
            return
        self._source = None
        # After the last page, wait for the next tick: other pages of this turn come first.
        self._source_ticks = 1 if is_last else self._config.history_ticks

    def is_other(self, sender: NodeId, session: int) -> bool:
        """Return True if a session would transfer the same publications as a current history."""
        if self.is_receiving and sender != self._source:
            return True
        served = self._served.get(sender) if self._served is not None else None
        return served is not None and served[0] != session

    def state(self) -> TransferState:
        """Return the variables as a value."""
        return TransferState(
            source=self._source,
            source_ticks=self._source_ticks,
            received_ticks=self._received_ticks,
            rest_ticks=self._rest_ticks,
            served=dict(self._served or ()),
        )

    def load(self, state: TransferState) -> None:
        """Replace the variables; the value may be corrupted."""
        self._source, self._source_ticks = state.source, state.source_ticks
        self._received_ticks, self._rest_ticks = state.received_ticks, state.rest_ticks
        self._served = dict(state.served) or None


def read_ahead(
    replica: Replica, entries: Iterator[tuple[bytes, int]], out: Outbox
) -> Iterator[RecordBatch]:
    """Yield the batches of some ids, in the order of the ids, except missing ones.

    The order of ids is unrelated to that of the log. So read ahead in log order, and double the
    number each time: a caller that stops early wastes little.
    """
    count = READ_AHEAD_MIN
    while ahead := list(islice(entries, count)):
        count = min(2 * count, READ_AHEAD_MAX)
        in_order = sorted(ahead, key=itemgetter(1))
        found = {key: replica.read(key, offset, out) for key, offset in in_order}
        yield from (each for key, _ in ahead if (each := found[key]) is not None)
