"""Standbys: a query that continues at another member reads the rest once."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from skipring.core.log_messages import LogInfo
from skipring.errors import UnreachableError
from skipring.rpc.log_reader import MemberLog
from skipring.spark.failover import partitions_between, with_standby
from skipring.spark.offsets import EXCEPTIONS_MAX, Entry, LogPlace, Position, Standby
from skipring.spark.partitions import RangePartition
from skipring.spark.snapshot import MemberStores
from tests.spark.rings import TOPIC


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


class Scene:
    """Two members that store the same publications in different orders."""

    def __init__(self, count: int, rng: Random) -> None:
        self.ours = [key(number) for number in range(count)]
        self.theirs = list(self.ours)
        # Roughly the same order: each arrives a little earlier or later.
        self.theirs.sort(key=lambda each: int.from_bytes(each, "big") + rng.uniform(0, 6))

    def moved(self, standby: Standby, ours: range, theirs: int) -> Standby:
        """Return the standby after a read of ``ours``, when the other store has ``theirs``."""
        arrived = [(offset, self.theirs[offset]) for offset in range(standby.offset, theirs)]
        moved = standby.moved((self.ours[offset] for offset in ours), arrived, place(theirs))
        assert moved is not None
        return moved

    def read(self, partitions: list[RangePartition]) -> list[bytes]:
        """Return the ids that tasks would read from the other store."""
        return [
            self.theirs[offset]
            for partition in partitions
            for part in partition.ranges
            for offset in part
            if self.theirs[offset] not in partition.without
            and (partition.only is None or self.theirs[offset] in partition.only)
        ]


def holder_of(end: int) -> MemberLog:
    survey = LogInfo(1, "b0", 0, end, end, end, (), bytes(12))
    return MemberLog(node="b", address="127.0.0.1:1", survey=survey)


def place(offset: int) -> LogPlace:
    return LogPlace(store="b0", epoch=0, offset=offset, chain=offset.to_bytes(8, "big"))


START = Standby(store="b0", epoch=0, offset=0)


@given(st.data())
def test_query_that_continues_at_a_standby_reads_the_rest_once(data: DataObject) -> None:
    count = data.draw(st.integers(0, 60))
    scene = Scene(count, Random(data.draw(st.integers(0, 1000))))
    standby, read = START, 0
    for _ in range(data.draw(st.integers(1, 5))):
        until = data.draw(st.integers(read, count))
        theirs = data.draw(st.integers(standby.offset, count))
        standby, read = scene.moved(standby, range(read, until), theirs), until
    end = Standby(store="b0", epoch=0, offset=count)
    places = standby, end, place(count)
    rest = scene.read(partitions_between(TOPIC, holder_of(count), places))
    assert sorted(rest) == sorted(scene.ours[read:])


@given(st.data())
def test_batch_that_runs_again_at_a_standby_reads_the_same(data: DataObject) -> None:
    count = data.draw(st.integers(0, 60))
    scene = Scene(count, Random(data.draw(st.integers(0, 1000))))
    first = data.draw(st.integers(0, count))
    then = data.draw(st.integers(first, count))
    before = scene.moved(START, range(first), data.draw(st.integers(0, count)))
    after = scene.moved(before, range(first, then), data.draw(st.integers(before.offset, count)))
    places = before, after, place(count)
    again = scene.read(partitions_between(TOPIC, holder_of(count), places))
    assert sorted(again) == sorted(scene.ours[first:then])


def test_records_that_arrived_late_are_read_in_as_few_ranges_as_possible() -> None:
    missing = tuple((offset, key(offset)) for offset in (3, 4, 5, 6, 9))
    start = Standby(store="b0", epoch=0, offset=10, missing=missing)
    end = Standby(store="b0", epoch=0, offset=10, missing=((6, key(6)),))
    (partition,) = partitions_between(TOPIC, holder_of(10), (start, end, place(10)))
    assert partition.ranges == (range(3, 6), range(9, 10))


class LoneMember(MemberStores):
    """Member that answers while no other member does."""

    def __init__(self, ids: list[bytes]) -> None:
        self._ids = ids

    def find(self, topic: str, place: LogPlace, looks: int = 1) -> MemberLog | None:
        raise UnreachableError(f"no member of {topic} has {place}, in {looks} looks")

    def durable(self, topic: str, bits: int | None = None) -> list[MemberLog]:
        raise UnreachableError(f"no member of {topic} answers to a survey of {bits} bits")

    def entries(self, topic: str, holder: MemberLog, start: int, end: int) -> list[Entry]:
        assert (topic, holder.node) == (TOPIC, "b")
        return [(offset, self._ids[offset]) for offset in range(start, end)]


def test_standby_whose_member_does_not_answer_is_kept() -> None:
    scene = Scene(20, Random(1))
    standby = scene.moved(START, range(10), 12)
    before = Position(store="a0", epoch=0, offset=10, standby=standby)
    after = Position(store="a0", epoch=0, offset=15)
    found = with_standby(LoneMember(scene.ours), TOPIC, before, after, holder_of(20)).standby
    assert found == scene.moved(standby, range(10, 15), 12)
    end = Standby(store="b0", epoch=0, offset=20)
    rest = scene.read(partitions_between(TOPIC, holder_of(20), (found, end, place(20))))
    assert sorted(rest) == scene.ours[15:]


def test_standby_whose_member_does_not_answer_is_dropped_after_many_reads() -> None:
    ids = [key(number) for number in range(EXCEPTIONS_MAX + 1)]
    before = Position(store="a0", epoch=0, offset=0, standby=START)
    after = Position(store="a0", epoch=0, offset=len(ids))
    assert with_standby(LoneMember(ids), TOPIC, before, after, holder_of(9)).standby is None


@given(st.data())
def test_standby_of_a_query_that_is_far_behind_differs_by_few_publications(
    data: DataObject,
) -> None:
    scene = Scene(600, Random(data.draw(st.integers(0, 1000))))
    standby, read = START, 0
    while read < 600:
        until = min(600, read + data.draw(st.integers(1, 200)))
        theirs = min(600, standby.offset_after(until - read))
        standby, read = scene.moved(standby, range(read, until), theirs), until
        assert standby.offset == read
        assert len(standby.missing) == len(standby.seen) <= 6


def test_standby_that_was_behind_catches_up() -> None:
    scene = Scene(100, Random(2))
    behind = scene.moved(START, range(40), 0)
    assert behind.offset_after(10) == 50
    assert scene.moved(behind, range(40, 50), 50).offset_after(0) == 50
    ahead = scene.moved(START, range(10), 60)
    assert ahead.offset_after(5) == 60  # a standby does not move back


def test_members_that_differ_much_are_not_standbys() -> None:
    read = [key(number) for number in range(EXCEPTIONS_MAX + 1)]
    end = place(len(read))
    assert START.moved(read, [], place(0)) is None
    assert START.moved([], list(enumerate(read)), end) is None
    assert START.moved(read, list(enumerate(read)), end) == Standby(
        store="b0", epoch=0, offset=len(read), chain=end.chain
    )
