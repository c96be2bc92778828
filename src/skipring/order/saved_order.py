"""State of an order in a cursor: publications without a reader, and what decides their order.

The text is base64 of msgpack. A decoded state is well-formed and within limits; it may be wrong. A
wrong state changes the order and the marks of publications, not which of them a reader gets.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Self

from msgspec import DecodeError, Meta, Struct, ValidationError, msgpack

from skipring.core.limits import NODE_PATTERN, NUMBER_MAX
from skipring.core.peers import NodeId
from skipring.core.publications import COUNTER_BITS, COUNTERS
from skipring.core.trie import OFFSET_MAX
from skipring.order.gaps import HELD, Order, Place
from skipring.order.publisher_order import SEQUENCES_MAX, Sequence

# More than a cursor with SEQUENCES_MAX names of 64 characters and HELD separate offsets has.
TEXT_CHARACTERS_MAX: Final = 1 << 20
_BATCH_RECORDS: Final = 256  # the last counter may be in a batch that exceeds the incarnation

_Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
_Count = Annotated[int, Meta(ge=1, le=HELD.records_max)]
_Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
_Name = Annotated[str, Meta(pattern=rf"\A({NODE_PATTERN})?\Z")]
_Counter = Annotated[int, Meta(ge=0, le=COUNTERS + _BATCH_RECORDS)]
# Offsets between the runs, and lengths of the runs.
_Runs = Annotated[tuple[tuple[_Offset, _Count], ...], Meta(max_length=2 * HELD.records_max)]


class _PublisherState(
    Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="p", gc=False
):
    runs: _Runs
    from_start: bool
    sequences: Annotated[
        tuple[tuple[_Name, tuple[tuple[_Number, _Counter], ...]], ...],
        Meta(max_length=SEQUENCES_MAX),
    ]


class _TimeState(
    Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="t", gc=False
):
    runs: _Runs
    passed: tuple[_Number, _Name, _Number]


_ENCODER: Final = msgpack.Encoder()
_DECODER: Final[msgpack.Decoder[_PublisherState | _TimeState]] = msgpack.Decoder(
    _PublisherState | _TimeState
)


class SavedOrder(Struct, frozen=True):
    """State of an order: ``pending`` offsets, and either ``following`` or ``passed``.

    >>> saved = SavedOrder((range(3, 5),), following={("n00", 0): 7}, from_start=True)
    >>> SavedOrder.parse(str(saved)) == saved
    True
    """

    pending: tuple[range, ...] = ()  # offsets before the cursor that the application does not have
    following: Mapping[Sequence, int] | None = None  # of an order by publisher
    from_start: bool = False
    passed: Place | None = None  # of an order by time

    def __str__(self) -> str:
        runs, end = [], 0
        for run in self.pending:
            runs.append((run.start - end, len(run)))
            end = run.stop
        state: _PublisherState | _TimeState
        if self.passed is not None:
            state = _TimeState(tuple(runs), self.passed)
        else:
            by_publisher: dict[NodeId, list[tuple[int, int]]] = {}
            for (publisher, incarnation), number in (self.following or {}).items():
                counter = number - (incarnation << COUNTER_BITS)
                by_publisher.setdefault(publisher, []).append((incarnation, counter))
            sequences = tuple((name, tuple(rows)) for name, rows in by_publisher.items())
            state = _PublisherState(tuple(runs), self.from_start, sequences)
        return urlsafe_b64encode(_ENCODER.encode(state)).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the state of a text; raise ValueError if it is invalid."""
        if len(text) > TEXT_CHARACTERS_MAX:
            raise ValueError("it is too long")
        try:
            encoded = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            state = _DECODER.decode(encoded)
        except (binascii.Error, DecodeError, ValidationError) as error:
            raise ValueError(str(error)) from None
        pending = tuple(_runs(state.runs))
        if sum(map(len, pending)) > 2 * HELD.records_max:
            raise ValueError("it has too many publications")
        if isinstance(state, _TimeState):
            return cls(pending, passed=state.passed)
        following: dict[Sequence, int] = {}
        for publisher, rows in state.sequences:
            for incarnation, counter in rows:
                if incarnation << COUNTER_BITS > NUMBER_MAX or not publisher:
                    raise ValueError("it has an impossible sequence")
                following[publisher, incarnation] = (incarnation << COUNTER_BITS) + counter
        if len(following) > SEQUENCES_MAX:
            raise ValueError("it has too many sequences")
        return cls(pending, following=following, from_start=state.from_start)

    @property
    def order(self) -> Order:
        """Return the order that made the state."""
        return Order.TIME if self.passed is not None else Order.PUBLISHER


def _runs(gaps: Iterable[tuple[int, int]]) -> Iterable[range]:
    """Yield runs of offsets, given the distance from the last one and the length of each."""
    end = 0
    for distance, length in gaps:
        start = end + distance
        end = start + length
        yield range(start, end)


def runs_of(offsets: Iterable[int]) -> tuple[range, ...]:
    """Return sorted runs of offsets; they may repeat.

    >>> runs_of([4, 9, 3, 9])
    (range(3, 5), range(9, 10))
    """
    runs: list[range] = []
    for offset in sorted(offsets):
        if runs and offset <= runs[-1].stop:
            runs[-1] = range(runs[-1].start, max(runs[-1].stop, offset + 1))
        else:
            runs.append(range(offset, offset + 1))
    return tuple(runs)
