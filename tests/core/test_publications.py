"""Publications: the id derives from topic and fields (section 4.2)."""

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core.publications import (
    COUNTER_BITS,
    COUNTERS,
    ID_BITS,
    ID_BYTES,
    OVERHEAD_BYTES,
    SEQ_BELIEVED_MAX,
    START_US,
    TOLERANCE_US,
    UNIT_US,
    OwnSequence,
    Publication,
    SequenceId,
    assign_ids,
    ids_of,
    incarnation_at,
    newest_of,
)
from tests.support.machines import TOPIC, unhurried

NEWS = Publication(
    publisher="ann",
    seq=7,
    payload=b"hello",
    time=1_700_000_000_000_000,
    key=b"k",
    headers={"lang": "en", "kind": "greeting"},
)
PINNED = "f7c0239edb7a1d4519913bc96a36cc112bc9f4092ead3d17d43d1306b9afcbde"

texts = st.text("ab\0\1", max_size=3)
data = st.binary(max_size=3) | st.text("\0\1\2ab", max_size=3).map(str.encode)
numbers = st.integers(0, 300) | st.integers(0, 2**64 - 1)


@st.composite
def all_fields(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw a topic and the fields of a publication from few letters, so that splits look alike."""
    return draw(texts), {
        "publisher": draw(texts),
        "seq": draw(numbers),
        "time": draw(numbers),
        "key": draw(st.none() | data),
        "headers": draw(st.dictionaries(texts, texts, max_size=3)),
        "payload": draw(st.none() | data),
    }


def test_id_has_256_bits() -> None:
    assert len(NEWS.id_in(TOPIC)) == ID_BYTES == 32
    assert ID_BITS == 256


def test_id_of_a_publication_is_stable() -> None:
    assert NEWS.id_in(TOPIC).hex() == PINNED


@pytest.mark.parametrize(
    "change",
    [
        {"publisher": "bob"},
        {"seq": 8},
        {"time": 1_700_000_000_000_001},
        {"key": b"l"},
        {"key": None},
        {"headers": {"lang": "en"}},
        {"headers": {"lang": "de", "kind": "greeting"}},
        {"headers": {"lang": "greeting", "kind": "en"}},
        {"payload": b"hello!"},
        {"payload": b""},
        {"payload": None},
    ],
    ids=str,
)
def test_every_field_changes_the_id(change: dict[str, Any]) -> None:
    assert replace(NEWS, **change).id_in(TOPIC) != NEWS.id_in(TOPIC)


def test_topic_changes_the_id() -> None:
    assert NEWS.id_in("other") != NEWS.id_in(TOPIC)


def test_carried_id_does_not_change_the_id() -> None:
    assert replace(NEWS, id=bytes(ID_BYTES)).id_in(TOPIC) == NEWS.id_in(TOPIC)


@pytest.mark.parametrize("field", ["key", "payload"])
def test_missing_value_differs_from_empty_bytes(field: str) -> None:
    nothing, no_bytes = (replace(NEWS, **{field: value}) for value in (None, b""))
    assert nothing.id_in(TOPIC) != no_bytes.id_in(TOPIC)


def test_order_of_headers_does_not_change_the_id() -> None:
    turned = dict(reversed(NEWS.headers.items()))
    assert list(turned) != list(NEWS.headers)
    assert replace(NEWS, headers=turned).id_in(TOPIC) == NEWS.id_in(TOPIC)


@unhurried
@given(all_fields(), all_fields())
def test_different_publications_have_different_ids(
    one: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]]
) -> None:
    assume(one != other)
    ids = {Publication(**fields).id_in(topic) for topic, fields in (one, other)}
    assert len(ids) == 2


@unhurried
@given(st.text("ab", max_size=6), st.integers(0, 6), st.integers(0, 6))
def test_border_between_two_fields_changes_the_id(text: str, one: int, other: int) -> None:
    assume(text[:one] != text[:other])
    ids = {Publication(publisher=text[place:], seq=0).id_in(text[:place]) for place in (one, other)}
    assert len(ids) == 2


@unhurried
@given(st.text("ab", max_size=6), st.integers(0, 6), st.integers(0, 6))
def test_end_of_a_header_name_changes_the_id(text: str, one: int, other: int) -> None:
    assume(text[:one] != text[:other])
    ids = {
        Publication(publisher="a", seq=0, headers={text[:place]: text[place:]}).id_in(TOPIC)
        for place in (one, other)
    }
    assert len(ids) == 2


def test_T10_publication_is_genuine_only_under_the_id_of_its_fields() -> None:
    settled = NEWS.with_id(TOPIC)
    assert settled.is_genuine(TOPIC)
    assert not settled.is_genuine("other")
    assert not NEWS.is_genuine(TOPIC)
    assert not replace(settled, payload=b"bye").is_genuine(TOPIC)
    assert not replace(settled, id=bytes(ID_BYTES)).is_genuine(TOPIC)


@unhurried
@given(all_fields(), st.binary(max_size=40))
def test_T10_publication_with_id_is_genuine_whatever_id_it_carried(
    drawn: tuple[str, dict[str, Any]], wrong: bytes
) -> None:
    topic, fields = drawn
    assume(fields["payload"] is not None)
    settled = Publication(**fields, id=wrong).with_id(topic)
    assert settled.is_genuine(topic)
    assert replace(settled, id=b"") == Publication(**fields)


def test_opaque_publication_keeps_its_id() -> None:
    opaque = Publication(publisher="ann", seq=0, id=b"x" * ID_BYTES)
    assert opaque.with_id(TOPIC) is opaque
    assert opaque.is_genuine(TOPIC)


def test_opaque_publication_without_an_id_gets_one() -> None:
    settled = Publication(publisher="ann", seq=0).with_id(TOPIC)
    assert len(settled.id) == ID_BYTES
    assert settled.is_genuine(TOPIC)


@pytest.mark.parametrize("size", [0, 1, 31, 33])
def test_opaque_publication_with_an_invalid_id_is_not_genuine(size: int) -> None:
    assert not Publication(publisher="ann", seq=0, id=b"x" * size).is_genuine(TOPIC)


@pytest.mark.parametrize("size", [1, 31, 33])
def test_T10_opaque_publication_with_id_is_genuine(size: int) -> None:
    opaque = Publication(publisher="ann", seq=0, id=b"x" * size)
    assert opaque.with_id(TOPIC).is_genuine(TOPIC)


@pytest.mark.parametrize("field", ["seq", "time"])
def test_negative_number_is_refused_by_the_decoder(field: str) -> None:
    wire = [-1 if name == field else value for name, value in msgspec.structs.asdict(NEWS).items()]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wire, Publication)


def test_size_counts_the_fields_of_the_user() -> None:
    assert Publication(publisher="ann", seq=0).size_bytes == OVERHEAD_BYTES
    texts = sum(len(name) + len(value) for name, value in NEWS.headers.items())
    assert NEWS.size_bytes == OVERHEAD_BYTES + len(b"hello") + len(b"k") + texts


@unhurried
@given(all_fields())
def test_publication_survives_an_encoding_round_trip(drawn: tuple[str, dict[str, Any]]) -> None:
    topic, fields = drawn
    settled = Publication(**fields).with_id(topic)
    wire = msgspec.msgpack.encode(settled)
    assert msgspec.msgpack.decode(wire, type=Publication) == settled


# -- batches of publications -------------------------------------------------------------------

EDGES = sorted({max((1 << 8 * size) + step, 0) for size in range(9) for step in (-1, 0, 1)})


@unhurried
@given(st.lists(all_fields().map(lambda drawn: drawn[1]), max_size=8))
def test_ids_of_a_list_equal_the_ids_of_each_publication(fields: list[dict[str, Any]]) -> None:
    some = [Publication(**each) for each in fields]
    alone = tuple(b"" if each.payload is None else each.id_in(TOPIC) for each in some)
    assert ids_of(some, TOPIC) == alone


def test_ids_of_consecutive_numbers_of_any_size_equal_the_single_ids() -> None:
    pairs = [(seq, time) for seq in EDGES for time in EDGES]
    some = [Publication(publisher="p", seq=seq, time=time, payload=b"x") for seq, time in pairs]
    assert ids_of(some, TOPIC) == tuple(each.id_in(TOPIC) for each in some)


def test_publication_without_a_valid_id_does_not_affect_the_others() -> None:
    sound = Publication(publisher="p", seq=1, time=1, payload=b"x")
    odd = [replace(sound, seq=-1), replace(sound, time=-1), replace(sound, payload=None)]
    ids = ids_of([sound, odd[0], sound, odd[1], sound, odd[2], sound], TOPIC)
    assert ids == (sound.id_in(TOPIC), b"") * 3 + (sound.id_in(TOPIC),)


def test_publications_with_computed_ids_are_genuine() -> None:
    some = [Publication(publisher="p", seq=seq, payload=b"x") for seq in range(3)]
    settled = [each.with_id(TOPIC) for each in some]
    assign_ids(some, ids_of(some, TOPIC))
    assert some == settled


# -- sequence numbers ----------------------------------------------------------------------

NOW_US = START_US + 1000 * UNIT_US
CURRENT = incarnation_at(NOW_US, 7)


def seq_of(incarnation: int, counter: int) -> int:
    return incarnation << COUNTER_BITS | counter


def issued(own: OwnSequence, newest: dict[SequenceId, int], count: int = 1) -> list[int]:
    return [own.next(newest, NOW_US) for _ in range(count)]


def test_incarnation_has_40_bits_and_rises_with_time() -> None:
    times = [0, START_US, NOW_US, NOW_US + UNIT_US, START_US << 20]
    incarnations = [incarnation_at(time, 0) for time in times]
    assert incarnations == sorted(incarnations)
    assert incarnation_at(START_US << 20) == (1 << 40) - 1
    assert seq_of((1 << 40) - 1, COUNTERS - 1) < SEQ_BELIEVED_MAX


def test_numbers_count_within_an_incarnation() -> None:
    own = OwnSequence("ann", CURRENT)
    assert issued(own, {}, 3) == [seq_of(CURRENT, counter) for counter in range(3)]


def test_run_without_a_disk_issues_other_numbers_than_the_run_before() -> None:
    before = issued(OwnSequence("ann", CURRENT), {}, 3)
    after = issued(OwnSequence("ann", incarnation_at(NOW_US, 8)), {}, 3)
    assert set(before) & set(after) == set()


def test_incarnation_is_above_all_stored_ones() -> None:
    stored = newest_of([("ann", seq_of(CURRENT, 5)), ("ann", seq_of(CURRENT + 3, 1)), ("bob", 9)])
    own = OwnSequence("ann", CURRENT)
    first, second = issued(own, stored, 2)
    assert first > seq_of(CURRENT + 3, COUNTERS - 1)
    assert second == first + 1


def test_processes_that_know_the_same_stored_numbers_issue_different_ones() -> None:
    """Neither knows the other: one process was killed before the other received its numbers."""
    for highest in (CURRENT + 99, incarnation_at(NOW_US + TOLERANCE_US) - 9):  # near the limit
        stored = newest_of([("ann", seq_of(highest, 5))])
        numbers = [
            OwnSequence("ann", incarnation_at(NOW_US, chance)).next(dict(stored), NOW_US)
            for chance in range(99)
        ]
        assert len({*numbers, *stored.values()}) == 100


def test_forged_number_ahead_of_the_clock_is_ignored_and_counted() -> None:
    forged = {("ann", (1 << 40) - 1): SEQ_BELIEVED_MAX - 1}
    own = OwnSequence("ann", CURRENT)
    assert issued(own, forged) == [seq_of(CURRENT, 0)]
    assert own.ahead == 1
    restarted = OwnSequence("ann", CURRENT + 1)
    assert issued(restarted, forged) == [seq_of(CURRENT + 1, 0)]


def test_number_within_the_tolerance_of_the_clock_counts() -> None:
    soon = incarnation_at(NOW_US + TOLERANCE_US, 0)
    own = OwnSequence("ann", CURRENT)
    (number,) = issued(own, {("ann", soon): seq_of(soon, 0)})
    assert seq_of(soon, 0) < number < seq_of(incarnation_at(NOW_US + TOLERANCE_US) + 1, 0)


def test_publication_of_a_clone_under_the_same_incarnation_leads_to_a_new_one() -> None:
    own, newest = OwnSequence("ann", CURRENT), {}
    issued(own, newest, 2)
    clone = seq_of(CURRENT, 9)
    newest["ann", CURRENT] = clone
    own.on_seen(clone)
    (number,) = issued(own, newest)
    assert number > seq_of(CURRENT, COUNTERS - 1)


def test_own_publication_that_returns_changes_nothing() -> None:
    own, newest = OwnSequence("ann", CURRENT), {}
    first, second = issued(own, newest, 2)
    own.on_seen(first)
    own.on_seen(second)
    assert issued(own, newest) == [second + 1]


def test_full_counter_leads_to_a_new_incarnation() -> None:
    own, newest = OwnSequence("ann", CURRENT), {}
    issued(own, newest)
    own._issued = seq_of(CURRENT, COUNTERS - 2)
    last, first = issued(own, newest, 2)
    assert last == seq_of(CURRENT, COUNTERS - 1)
    assert first >> COUNTER_BITS > CURRENT
    assert first % COUNTERS == 0


def test_numbers_from_2_to_the_62_on_are_ignored() -> None:
    assert newest_of([("ann", SEQ_BELIEVED_MAX), ("ann", 3)]) == {("ann", 0): 3}


stored_numbers = st.integers(0, SEQ_BELIEVED_MAX - 1)


@given(stored_numbers, st.integers(1, (1 << 40) - 1), st.booleans(), st.integers(0, 9))
def test_corrupt_issuer_issues_new_numbers_below_the_clock(
    issued_last: int, incarnation: int, is_challenged: bool, ahead: int
) -> None:
    own, newest = OwnSequence("ann", CURRENT), {}
    known = set(issued(own, newest, 3))
    own._issued, own.incarnation = issued_last, incarnation
    own._is_challenged, own.ahead = is_challenged, ahead
    first, second = issued(own, newest, 2)
    assert first not in known
    if incarnation << COUNTER_BITS != issued_last + 1:  # else it looks like an unused incarnation
        assert first >> COUNTER_BITS <= incarnation_at(NOW_US + TOLERANCE_US) + 1
    assert second == first + 1


@given(st.lists(stored_numbers, max_size=20), st.lists(stored_numbers, max_size=20))
def test_no_number_is_issued_twice_for_any_arrivals(stored: list[int], arrives: list[int]) -> None:
    newest = newest_of(("ann", seq) for seq in stored)
    own = OwnSequence("ann", CURRENT)
    known = set(newest.values())
    for seq in [*arrives, 0]:
        made = own.next(newest, NOW_US)
        assert made not in known
        known.add(made)
        sequence = "ann", seq >> COUNTER_BITS
        if newest.get(sequence, -1) < seq:
            newest[sequence] = seq
        own.on_seen(seq)
