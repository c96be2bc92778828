"""Positions in topics, and the same positions in the stores of others."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from msgspec.structs import replace

from skipring.core.peers import TopicId
from skipring.errors import InputError
from skipring.rpc.log_reader import MemberLog
from skipring.spark.failover import partitions_between
from skipring.spark.offsets import (
    EXCEPTIONS_MAX,
    LogPlace,
    Position,
    Standby,
    from_json,
    parse_positions,
    to_json,
)
from skipring.spark.partitions import RangePartition, cut
from skipring.spark.snapshot import fits
from skipring.spark.stream import shared_out
from skipring.wire.rpc import LogInfo

TOPIC: TopicId = "orders"
BAD_STANDBY = '{"store": "b0", "epoch": 0, "offset": -1}'


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def keys() -> st.SearchStrategy[frozenset[bytes]]:
    return st.frozensets(st.integers(0, 50).map(key), max_size=5)


@given(keys(), keys(), st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 9).map(key))))
def test_positions_survive_being_kept(
    seen: frozenset[bytes], late: frozenset[bytes], missing: list[tuple[int, bytes]]
) -> None:
    standby = Standby(
        store="b0", epoch=2, offset=7, chain=b"standby.", missing=tuple(missing), seen=late
    )
    for position in (
        Position(store="a0", epoch=2**62 - 1, offset=9),
        Position(
            store="a0", epoch=1, offset=9, chain=bytes(8), seen=seen, begun=3, standby=standby
        ),
    ):
        kept = json.dumps(to_json({TOPIC: position}))
        assert from_json(json.loads(kept)) == {TOPIC: position}


def test_without_a_standby_a_position_has_four_fields() -> None:
    position = Position(store="a0", epoch=1, offset=9, chain=bytes(range(8)))
    assert to_json({TOPIC: position}) == {
        TOPIC: {"store": "a0", "epoch": 1, "offset": 9, "chain": "0001020304050607"}
    }


@pytest.mark.parametrize(
    ("given", "is_same"),
    [
        ({}, True),
        ({"store": "b0"}, False),
        ({"epoch": 2}, False),
        ({"offset": 101}, False),
        ({"chain": b"other..."}, False),
        ({"chain": b""}, True),  # given by a user
        ({"chain": b"", "offset": 101}, False),
        ({"epoch": 2, "offset": 0, "chain": b""}, True),
        ({"epoch": 2, "offset": 0, "chain": b"other..."}, True),
        ({"store": "b0", "offset": 0}, False),
    ],
)
def test_place_is_in_a_log_if_all_before_it_is_the_same(
    given: dict[str, Any], is_same: bool
) -> None:
    survey = LogInfo(1, "a0", 1, 100, 120, 120, (), b"chain...")
    place = LogPlace(store="a0", epoch=1, offset=42, chain=b"chain...")
    assert fits(survey, replace(place, **given)) is is_same


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "nonsense",
        '{"orders": {"store": "a0", "epoch": 0}}',
        '{"orders": {"store": "a0", "epoch": 0, "offset": "x"}}',
        '{"orders": {"store": "a0", "epoch": 0, "offset": 1, "more": 1}}',
        '{"orders": {"store": "a0", "epoch": 0, "offset": 1, "seen": "AAAA"}}',
        '{"orders": {"store": "a0", "epoch": 0, "offset": 1, "seen": "???"}}',
        '{"orders": {"store": "a0", "epoch": 0, "offset": 1, "standby": {"store": "b"}}}',
        '{"orders": {"store": "a0", "epoch": 0, "offset": 1099511627776}}',
        '{"orders": {"store": "a0", "epoch": 4611686018427387904, "offset": 1}}',
        '{"orders": {"store": "a0", "epoch": 0, "offset": 1, "chain": "xyz"}}',
        '{"orders": {"store": "a0", "epoch": 0, "offset": 1, "chain": "00"}}',
        f'{{"orders": {{"store": "a0", "epoch": 0, "offset": 1, "standby": {BAD_STANDBY}}}}}',
    ],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_positions(text, "startingOffsets")


# -- a query that goes on at another member ----------------------------------------------------


class Scene:
    """Two members that store the same publications in orders of their own, and what was read."""

    def __init__(self, count: int, rng: Random) -> None:
        self.ours = [key(number) for number in range(count)]
        self.theirs = list(self.ours)
        # Roughly the same order: each comes a little earlier or later.
        self.theirs.sort(key=lambda each: int.from_bytes(each, "big") + rng.uniform(0, 6))

    def moved(self, standby: Standby, ours: range, theirs: int) -> Standby:
        """Return the standby after a read of ``ours``, when the other store has ``theirs``."""
        arrived = [(offset, self.theirs[offset]) for offset in range(standby.offset, theirs)]
        moved = standby.moved((self.ours[offset] for offset in ours), arrived, place(theirs))
        assert moved is not None
        return moved

    def read(self, partitions: list[RangePartition]) -> list[bytes]:
        """The ids that tasks would read of their store."""
        return [
            self.theirs[offset]
            for partition in partitions
            for part in partition.ranges
            for offset in part
            if self.theirs[offset] not in partition.without
            and (partition.only is None or self.theirs[offset] in partition.only)
        ]


def holder_of(end: int) -> MemberLog:
    survey = LogInfo(1, "b0", 0, end, end, end, (), bytes(8))
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
    rest = scene.read(partitions_between(TOPIC, holder_of(count), places, None))
    assert sorted(rest) == sorted(scene.ours[read:])


@given(st.data())
def test_a_batch_that_is_run_again_at_a_standby_reads_what_it_read(data: DataObject) -> None:
    count = data.draw(st.integers(0, 60))
    scene = Scene(count, Random(data.draw(st.integers(0, 1000))))
    first = data.draw(st.integers(0, count))
    then = data.draw(st.integers(first, count))
    before = scene.moved(START, range(first), data.draw(st.integers(0, count)))
    after = scene.moved(before, range(first, then), data.draw(st.integers(before.offset, count)))
    places = before, after, place(count)
    again = scene.read(partitions_between(TOPIC, holder_of(count), places, None))
    assert sorted(again) == sorted(scene.ours[first:then])


def test_two_members_that_differ_much_are_no_standby_of_each_other() -> None:
    read = [key(number) for number in range(EXCEPTIONS_MAX + 1)]
    end = place(len(read))
    assert START.moved(read, [], place(0)) is None
    assert START.moved([], list(enumerate(read)), end) is None
    assert START.moved(read, list(enumerate(read)), end) == Standby(
        store="b0", epoch=0, offset=len(read), chain=end.chain
    )


# -- shares and ranges -------------------------------------------------------------------------


def _ranges(sizes: list[int]) -> list[range]:
    starts = [sum(sizes[:place]) + 3 * place for place in range(len(sizes))]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


@given(
    st.lists(st.integers(0, 40)).map(_ranges),
    st.integers(1, 30),
)
def test_ranges_are_cut_into_groups_of_the_same_size(ranges: list[range], size: int) -> None:
    groups = list(cut(ranges, size))
    flat = [offset for group in groups for part in group for offset in part]
    assert flat == [offset for part in ranges for offset in part]
    assert all(sum(map(len, group)) == size for group in groups[:-1])
    assert all(0 < sum(map(len, group)) <= size for group in groups)


@given(st.dictionaries(st.text(), st.integers(0, 10**6)), st.integers(1, 10**6))
def test_a_limit_is_shared_by_the_topics_and_all_of_them_go_on(
    ahead: dict[str, int], rows_max: int
) -> None:
    taken = shared_out(ahead, rows_max)
    assert taken.keys() == ahead.keys()
    assert all(0 <= taken[topic] <= count for topic, count in ahead.items())
    assert all(taken[topic] for topic, count in ahead.items() if count)
    assert sum(taken.values()) <= max(rows_max, 0) + len(ahead)
    assert shared_out(ahead, None) == ahead
