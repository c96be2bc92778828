"""Retention of one topic at one member: charter, clock, floors and quarantine (decision 0057).

It exists once the member has stored a charter or received terms. It decides which batches the
replica admits and drops; it does not change the log and the trie. Every variable is derived from
the log and the clocks, or trusted only as far as these support it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate, islice
from struct import Struct as Layout
from typing import Annotated, Final, TypeAlias

from msgspec import DecodeError, Meta, Struct, msgpack
from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch, is_reserved
from skipring.core.config import ProtocolConfig
from skipring.core.limits import NUMBER_MAX, TERMS_BYTES
from skipring.core.log import Log, dense_offsets
from skipring.core.publications import ID_BYTES
from skipring.core.retention.charter import UNLIMITED, CharterRow, Policy, rank
from skipring.core.retention.charters import Charters
from skipring.core.retention.departed import Departed
from skipring.core.retention.floors import NO_FLOORS, Floors, FloorsState, FloorStamps
from skipring.core.retention.quarantine import Quarantine, QuarantineState
from skipring.core.retention.retained import Dropped, RetainedRows
from skipring.core.retention.rows import stamp_of
from skipring.core.retention.stamp_index import StampIndex
from skipring.core.retention.topic_clock import ClockState, TopicClock

HIDDEN_CHECKED: Final = 64  # Guess: quarantined batches that one audit reads again.
ROWS_TICKS: Final = 64  # Guess: the index of a small log is derived again after 64 ticks.
STALE: Final = 1  # the last bit of a digest
NO_TERMS: Final = b""

_STAMPS: Final = Layout(">3Q")
_ENCODER: Final = msgpack.Encoder()


ConfirmedId: TypeAlias = Annotated[bytes, Meta(max_length=ID_BYTES)]


class _Saved(Struct, frozen=True, array_like=True, gc=False):
    """Values that a restart needs besides the log."""

    confirmed: int = 0
    charters: list[int] = []  # offsets
    begins: dict[ConfirmedId, int] = {}


_SAVED: Final = msgpack.Decoder(_Saved)


class TermsState(Struct, frozen=True, kw_only=True, gc=False):
    """Terms of a subscriber: clocks, floors and quarantine (decision 0057)."""

    clock: ClockState = ClockState()
    floors: FloorsState = FloorsState()
    quarantine: QuarantineState = QuarantineState()
    last_confirmed: int = 0
    newest: int = 0
    rows_ticks: int = 0
    charters: tuple[int, ...] = ()  # offsets
    begins: dict[ConfirmedId, int] = {}
    confirmed: ConfirmedId = b""


class Retention:
    """Charter, clock, floors, index and quarantine of one topic at one member."""

    __slots__ = (
        "_config",
        "_log",
        "_newest",
        "_rows_ticks",
        "charters",
        "clock",
        "departed",
        "floors",
        "last_confirmed",
        "quarantine",
        "rows",
    )

    def __init__(self, log: Log, config: ProtocolConfig) -> None:
        self._log = log
        self._config = config
        self.clock = TopicClock(config.clock_tolerance_us)
        self.floors = Floors(config.floor_quantum_us)
        self.quarantine = Quarantine(log)
        self.departed = Departed()
        self.charters = Charters(log, config.policy_delay_us)
        self.rows: RetainedRows | None = None  # None without limits
        self.last_confirmed = 0  # when a fresh member last confirmed an equal trie
        self._newest = 0  # the latest stamp of a stored batch
        self._rows_ticks = 0  # since the index was derived from the log

    @property
    def policy(self) -> Policy:
        """Return the effective policy."""
        return self.acting[0].policy if self.acting is not None else UNLIMITED

    @property
    def acting(self) -> CharterRow | None:
        """Return the effective charter, or None."""
        return self.charters.acting

    @property
    def newest_charter(self) -> CharterRow | None:
        """Return the highest known charter, which may not be in effect yet, or None."""
        return max(self.charters.rows(), key=rank, default=None)

    # -- terms -------------------------------------------------------------------------------

    @property
    def is_stale(self) -> bool:
        """Return True if others may have dropped tombstones that this member lacks (rule 9)."""
        return min(self.last_confirmed, self.clock.topic) < self.floors.stamps.tombstones

    @property
    def is_unsure(self) -> bool:
        """Return True while this member cannot know whether it is stale; it sends no row yet."""
        return len(self.charters) > 0 and not self.clock.is_sure

    def confirm(self) -> None:
        """Record that a fresh member has confirmed an equal trie."""
        self.last_confirmed = self.clock.topic

    def digest(self) -> bytes:
        """Return the digest of charter and floors, with the flag of a stale member; or nothing."""
        stamps = self.floors.stamps
        if self.acting is None and stamps == NO_FLOORS:
            return NO_TERMS
        state = blake2b(digest_size=TERMS_BYTES, person=b"skipring terms")
        state.update(self.acting[1] if self.acting is not None else b"")
        # Memory may be corrupted: a register may have any value.
        known = (min(max(each, 0), NUMBER_MAX) for each in (stamps.age, stamps.full))
        state.update(_STAMPS.pack(*known, min(max(stamps.tombstones, 0), NUMBER_MAX)))
        found = state.digest()
        return found[:-1] + bytes([found[-1] & ~STALE | (STALE if self.is_stale else 0)])

    def adopt(self, received: FloorStamps, *, from_ring_neighbour: bool) -> None:
        """Raise the floors to received ones, as far as clock and rows justify them."""
        self.floors.adopt(
            received,
            self.policy,
            self.clock,
            self._sizes,
            from_ring_neighbour=from_ring_neighbour,
        )

    @property
    def _complete_rows(self) -> RetainedRows | None:
        return self.rows if self.rows is not None and self.rows.is_complete else None

    @property
    def _sizes(self) -> StampIndex | None:
        rows = self._complete_rows
        return rows.stamps if rows is not None else None

    # -- periodic actions --------------------------------------------------------------------

    def on_tick(self, now: int, monotonic: int, neighbours: Sequence[str]) -> None:
        """Set the clocks, choose the charter, and justify the floors."""
        # Memory may be corrupted: clamp the counter to its valid range.
        self._rows_ticks = min(max(self._rows_ticks, 0), ROWS_TICKS) + 1
        self.departed.on_tick()
        self.clock.retain(neighbours)
        self.clock.on_tick(now, monotonic)
        self.choose(self._log.end)
        self.floors.justify(self.policy, self.clock, self._sizes)

    def choose(self, end: int) -> None:
        """Derive the effective charter; index the log to its end again if the policy has changed.

        The log may not have the last batches of the current event yet.
        """
        before = self.policy
        self.charters.choose(self.clock)
        policy = self.policy
        if policy != before or policy.is_limited != (self.rows is not None):
            is_limited = policy.is_limited
            hidden = self.quarantine.hidden
            self.rows = RetainedRows(self._log, policy, hidden, end) if is_limited else None

    def restart_rows(self, end: int) -> None:
        """Derive the index of rows again at times: memory may be corrupted."""
        if self.rows is not None and self._rows_ticks >= ROWS_TICKS:
            self._rows_ticks = 0
            self.rows.restart(end)

    def audit(self) -> list[bytes]:
        """Verify the cached charters; return quarantined ids that may be admitted again."""
        self.charters.audit()
        self.quarantine.audit()
        self.choose(self._log.end)
        hidden, admitted = self.quarantine.hidden, []
        if self.acting is None and self._rows_ticks <= ROWS_TICKS:
            return []  # the floor of tombstones is unknown until a charter is found
        for key in list(islice(hidden, HIDDEN_CHECKED)):
            batch = self.quarantine.batch(key)
            if batch is None:
                self.quarantine.remove(key)
            elif self._is_early(batch) or self.is_old(batch):
                hidden[key] = hidden.pop(key)  # the others next time
            else:
                admitted.append(key)
        return admitted

    # -- batches -----------------------------------------------------------------------------

    def admits(
        self, batch: RecordBatch, records: Sequence[BatchRecord], *, is_new: bool = False
    ) -> bool:
        """Return False if a batch of another node or a client may not be stored now.

        Members that have stored a batch from the future offer it again. Only a new batch needs a
        time: older ones were stored before the policy began. Without the clocks of its neighbours
        a member admits new ones, and hides or drops them later.
        """
        stamp, is_special = stamp_of(records), is_reserved(records)
        is_judged = self.clock.is_sure or not is_new
        if is_judged and (self._is_chartered or is_special) and self.clock.is_future(stamp):
            return False
        if is_new and not stamp and self.policy.needs_times:
            return False
        if is_special:
            return self.charters.admits(batch, records[0], self.clock)
        rows, stamps = self.rows, self.floors.stamps
        return not is_judged or rows is None or not rows.refuses(batch, records, stamps)

    def on_stored(
        self,
        offset: int,
        batches: Sequence[RecordBatch],
        records: Sequence[Sequence[BatchRecord]],
        *,
        are_new: bool = False,
    ) -> bool:
        """Record batches that the replica has stored from an offset on.

        ``are_new``: they are no part of the history. Return True if one has a charter: the host
        saves its offset for the next start.
        """
        ends = list(accumulate([batch.count for batch in batches], initial=offset))
        stored = list(zip(ends, batches, records, strict=False))
        found = [self.charters.record(*each, is_new=are_new) for each in stored]
        has_charter = any(found)
        if has_charter:
            self.choose(ends[-1])
        for at, batch, rows in stored:
            self._newest = max(self._newest, stamp_of(rows))
            if self.rows is not None:
                self.rows.add(at, batch, rows)
        return has_charter

    def refuses(self, batch: RecordBatch) -> bool:
        """Return True if a batch of a neighbour would not be stored under the policy."""
        records, rows, stamps = batch.readable_records(), self.rows, self.floors.stamps
        if not records:
            return False
        is_future = self.clock.is_future(stamp_of(records))
        return is_future or (rows is not None and rows.refuses(batch, records, stamps))

    def stamped(self, records: Sequence[BatchRecord]) -> list[BatchRecord]:
        """Return new records of this node with stamps above all that it knows (M1.1).

        The application's time is used if it is near the topic clock, whose last tick is older.
        """
        made = []
        for each in records:
            is_near = abs(each.time - self.clock.topic) <= self.clock.tolerance
            given = each.time if is_near or not self.clock.is_known else 0
            newest = self.rows.stamps.last if self.rows is not None else 0
            self._newest = max(self.clock.stamp(self._newest, newest), given)
            made.append(replace(each, time=self._newest))
        return made

    # -- what is dropped ---------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Return True if the index of rows is incomplete."""
        return self.rows is not None and (not self.rows.is_complete or self.rows.has_backlog)

    def next_drops(self, batches: int, confirmed: FloorStamps = NO_FLOORS) -> list[Dropped]:
        """Index a slice of the log, or return the next batches that are not retained.

        ``confirmed`` are the floors in the message of a ring neighbour that is handled now.
        """
        rows = self.rows
        if rows is not None and not rows.is_complete:
            rows.build(batches)
            return []  # the floor of full topics is justified at the next tick
        if not self.clock.is_sure:
            return []
        found = self.charters.superseded(self.clock)
        if rows is None:
            return found
        if rows.is_over_limit:  # more rows than fit have arrived since the tick
            self.floors.justify(self.policy, self.clock, rows.stamps)
        return found + rows.drop(self.floors.droppable(self.policy, self.clock, confirmed), batches)

    def hide_early(self, batches: int) -> list[tuple[bytes, int]]:
        """Quarantine stored batches from the future; return their ids and offsets."""
        if not (self.clock.is_sure and self.clock.is_known):
            return []
        rows, found = self._complete_rows, self.charters.early(self.clock)
        found += rows.above(self.clock.horizon, batches) if rows is not None else []
        stored = [(offset, batch) for offset, batch in found if batch is not None]
        return [(each.id, offset) for offset, each in stored if self.hides_early(offset, each)]

    @property
    def _is_chartered(self) -> bool:
        """Return True if this member has stored a charter, which may be in quarantine."""
        return len(self.charters) > 0 or len(self.quarantine) > 0

    @property
    def needs_scrub(self) -> bool:
        """Return True if no index finds the batches from the future: the scrub does."""
        return self.rows is None and self._is_chartered

    def hides_early(self, offset: int, batch: RecordBatch) -> bool:
        """Quarantine a stored batch if it is from the future; return True if it is."""
        is_early = self.clock.is_sure and self._is_early(batch)
        return is_early and self.hide(offset, batch, stamp_of(batch.records()))

    # -- stale members (rules 9 to 11) -------------------------------------------------------

    def withholds(self, batch: RecordBatch) -> bool:
        """Return True if this member is stale and a batch is below the floor of tombstones."""
        return self.is_stale and self.is_old(batch)

    def is_old(self, batch: RecordBatch) -> bool:
        """Return True if a tombstone that hides the batch may be forgotten."""
        records = batch.readable_records()  # the scrubber quarantines a batch without any
        is_row = bool(records) and not is_reserved(records)
        return is_row and stamp_of(records) < self.floors.stamps.tombstones

    def _is_early(self, batch: RecordBatch) -> bool:
        """Return True if a batch is from the future."""
        return self.clock.is_future(stamp_of(batch.readable_records()))

    def keeps_early(self, batch: RecordBatch) -> bool:
        """Return True if a batch is stored, and in quarantine because it is from the future."""
        return batch.id in self.quarantine.hidden and self._is_early(batch)

    @property
    def can_refuse(self) -> bool:
        """Return True if this member has to refuse old rows of senders that may be stale."""
        return self.policy.compact and self.floors.stamps.tombstones > 0 and not self.is_stale

    def hide(self, offset: int, batch: RecordBatch, stamp: int | None = None) -> bool:
        """Quarantine a stored batch that the replica removes from its trie; False if full.

        ``stamp`` is given if it is in the future.
        """
        is_hidden = self.quarantine.add(batch.id, offset, stamp)
        if is_hidden and self.rows is not None:
            self.rows.withdraw(offset, batch)
        return is_hidden

    def reveal(self, key: bytes) -> int | None:
        """Remove a stored batch from the quarantine; return its offset, or None."""
        batch, offset = self.quarantine.batch(key), self.quarantine.remove(key)
        if offset is None or batch is None:
            return None
        records = batch.records()
        if is_reserved(records):
            self.charters.record(offset, batch, records)
        if self.rows is not None:
            self.rows.readmit(offset, batch)
        return offset

    # -- queries of the legitimacy check -----------------------------------------------------

    def is_justified(self) -> bool:
        """Return True if clock and rows justify the floors as they are."""
        copy = Floors(self._config.floor_quantum_us)
        copy.load(self.floors.state())
        rows = RetainedRows(self._log, self.policy, self.quarantine.hidden)
        while not rows.is_complete:
            rows.build(self._log.end)
        copy.justify(self.policy, self.clock, rows.stamps)
        return copy.stamps == self.floors.stamps

    def misplaced(self) -> int:
        """Return the number of quarantined batches that belong in the trie."""
        stored = self.quarantine.stored().values()
        return sum(not (self._is_early(each) or self.is_old(each)) for each in stored)

    # -- state as a value --------------------------------------------------------------------

    def saved(self) -> bytes:
        """Return the state that a restart needs besides the log: last confirmation and charters.

        While batches are quarantined as returned, the confirmation is not saved: after a restart
        the member is stale again and its neighbours judge them again.
        """
        # Memory may be corrupted: clamp the time to its valid range.
        confirmed = 0 if self.quarantine.returned else self.last_confirmed
        latest = self.clock.topic if self.clock.is_known else NUMBER_MAX
        confirmed = min(max(confirmed, 0), latest)
        return _ENCODER.encode(_Saved(confirmed, self.charters.offsets, self.charters.begins))

    def recover(self) -> bool:
        """Read the charters at the saved offsets of the log after a start; return False if none.

        The scrub finds others.
        """
        self.rows = None
        try:
            saved = _SAVED.decode(self._log.terms)
        except (DecodeError, ValueError):
            saved = _Saved()
        self.last_confirmed = min(max(saved.confirmed, 0), NUMBER_MAX)
        self.charters.load(saved.charters, begins=saved.begins)
        self.choose(self._log.end)
        return len(self.charters) > 0

    def state(self) -> TermsState:
        """Return the variables as a value, with offsets of a log without gaps."""
        dense, quarantine = dense_offsets(self._log), self.quarantine.state()
        hidden = {key: dense.get(at, at) for key, at in quarantine.hidden.items()}
        return TermsState(
            clock=self.clock.state(),
            floors=self.floors.state(),
            quarantine=replace(quarantine, hidden=hidden),
            last_confirmed=self.last_confirmed,
            newest=self._newest,
            rows_ticks=self._rows_ticks,
            confirmed=self.charters.confirmed,
            charters=tuple([dense.get(at, at) for at in self.charters.offsets]),
            begins=self.charters.begins,
        )

    def load(self, state: TermsState) -> None:
        """Replace the variables; the value may be corrupted."""
        self.clock.load(state.clock)
        self.floors.load(state.floors)
        self.quarantine.load(state.quarantine)
        self.last_confirmed, self._newest = state.last_confirmed, state.newest
        self._rows_ticks = state.rows_ticks
        self.charters.load(state.charters, state.confirmed, state.begins)
        self.choose(self._log.end)
        if self.rows is not None:
            self.rows.restart()
