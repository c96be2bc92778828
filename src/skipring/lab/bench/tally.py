"""What the subscribers of a run have got: counted, and how long it took."""

from __future__ import annotations

from statistics import quantiles
from struct import Struct as Layout
from time import perf_counter_ns
from typing import Final

from skipring.lab.bench.board import Board, Moment, Slot
from skipring.lab.bench.peers.run import BenchRun, Receive

STAMP: Final = Layout("<Bq")  # what a payload begins with: its kind, and a number
PROBE: Final = 0  # its number is its own
MEASURED: Final = 1  # its number is the time when it was published
NOTED_EACH: Final = 64  # Our guess: a small part of a window, and rarely enough to cost nothing.
PERCENTILES: Final = 100


def payload_of(kind: int, number: int, size: int) -> bytes:
    """A payload of so many bytes."""
    return STAMP.pack(kind, number).ljust(size, b"x")


def payload_at(number: int, size: int) -> bytes:
    """What is published at a place of a history."""
    return payload_of(MEASURED, number, size)


class Tally:
    """Counts the deliveries of all subscribers."""

    def __init__(self, run: BenchRun, board: Board) -> None:
        self.count = 0
        self._expected = run.n * run.count
        self._probes = [0] * (run.n * run.topics)
        self._latencies_ns: list[int] = []
        self._is_timed = run.rate > 0
        self._board = board

    def receivers(self) -> list[Receive]:
        """Who is to be called with each payload, one of each subscriber and topic."""
        return [self._receiver(number) for number in range(len(self._probes))]

    def _receiver(self, subscriber: int) -> Receive:
        def receive(payload: bytes) -> None:
            if payload[0] == PROBE:
                number = STAMP.unpack_from(payload)[1]
                self._probes[subscriber] = max(number, self._probes[subscriber])
                return
            if self._is_timed:
                self._latencies_ns.append(perf_counter_ns() - STAMP.unpack_from(payload)[1])
            self.count = count = self.count + 1
            if count % NOTED_EACH == 0 or count == self._expected:
                self.note()

        return receive

    def note(self) -> None:
        """Tell the others how far we are."""
        self._board[Slot.DELIVERED] = self.count
        if self.count == self._expected:
            self._board.note(Moment.ENDED)

    def note_probes(self) -> bool:
        """Tell the publisher which probe has come to all; True once it wants no more."""
        self._board[Slot.PROBED] = min(self._probes)
        return bool(self._board[Slot.IS_PROBED])

    def latencies(self) -> dict[str, float]:
        """How long publications took, in milliseconds."""
        if len(self._latencies_ns) < 2:  # noqa: PLR2004  (quantiles are of two or more)
            return {}
        cuts = quantiles(self._latencies_ns, n=PERCENTILES)
        return {"p50_ms": cuts[49] / 1e6, "p99_ms": cuts[98] / 1e6}
