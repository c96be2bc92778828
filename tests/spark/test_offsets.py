"""Positions of a stream: their JSON form, and refused positions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core.peers import TopicId
from skipring.errors import InputError
from skipring.spark.offsets import Position, Standby, from_json, parse_positions, to_json

TOPIC: TopicId = "orders"


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def keys() -> st.SearchStrategy[frozenset[bytes]]:
    return st.frozensets(st.integers(0, 50).map(key), max_size=5)


@given(keys(), keys(), st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 9).map(key))))
def test_positions_survive_their_json_form(
    seen: frozenset[bytes], late: frozenset[bytes], missing: list[tuple[int, bytes]]
) -> None:
    standby = Standby(
        store="b0", epoch=2, offset=7, chain=b"standby.....", missing=tuple(missing), seen=late
    )
    for position in (
        Position(store="a0", epoch=2**62 - 1, offset=9),
        Position(
            store="a0", epoch=1, offset=9, chain=bytes(12), seen=seen, begun=3, standby=standby
        ),
    ):
        kept = json.dumps(to_json({TOPIC: position}))
        assert from_json(json.loads(kept)) == {TOPIC: position}


def test_position_without_a_standby_has_four_fields() -> None:
    position = Position(store="a0", epoch=1, offset=9, chain=bytes(range(8)))
    assert to_json({TOPIC: position}) == {
        TOPIC: {"store": "a0", "epoch": 1, "offset": 9, "chain": "0001020304050607"}
    }


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "nonsense",
        '{"orders": {"store": "a0", "epoch": 0}}',
        '{"orders": {"store": "a0", "epoch": 0, "offset": "x"}}',
        '{"orders": {"store": "a0", "epoch": 0, "offset": 1099511627776}}',
        '{"orders": {"store": "a0", "epoch": 4611686018427387904, "offset": 1}}',
        *(
            f'{{"orders": {{"store": "a0", "epoch": 0, "offset": 1, {more}}}}}'
            for more in (
                '"more": 1',
                '"seen": "AAAA"',
                '"seen": "???"',
                '"chain": "xyz"',
                '"chain": "00"',
                '"standby": {"store": "b"}',
                '"standby": {"store": "b0", "epoch": 0, "offset": -1}',
            )
        ),
    ],
)
def test_invalid_position_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_positions(text, "startingOffsets")
