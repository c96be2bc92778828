"""Snapshot that members agree on, and the members that it is read from."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from skipring.core.limits import TRIMMED_CHAIN, UNKNOWN_DIGEST
from skipring.core.log_messages import LogInfo
from skipring.core.retention.charter import Policy
from skipring.errors import DataLossError
from skipring.rpc.log_reader import MemberLog
from skipring.spark.offsets import LogPlace
from skipring.spark.snapshot import agreed_parts, expired, first_offset, has_place, is_shared


def holder(node: str, digests: str, count: int = 10, end: int = 10) -> MemberLog:
    """Return a member with one letter per digest; a dot for a prefix without ids."""
    texts = tuple(b"" if letter == "." else letter.encode() * 16 for letter in digests)
    survey = LogInfo(1, "5eed", 0, end, end, count, texts, b"")
    return MemberLog(node=node, address=f"{node}:1", survey=survey)


def sources(holders: list[MemberLog]) -> list[list[str]]:
    return [[source.node for source in part.sources] for part in agreed_parts(holders)]


def test_members_that_agree_share_the_prefixes() -> None:
    holders = [holder("a", "wxyz"), holder("b", "wxyz"), holder("c", "wxyz")]
    assert [each[0] for each in sources(holders)] == ["a", "b", "c", "a"]
    assert is_shared(agreed_parts(holders))


def test_member_is_omitted_for_prefixes_where_it_disagrees() -> None:
    holders = [holder("a", "wxyz"), holder("b", "wxyz"), holder("c", "wxy!")]
    assert [sorted(each) for each in sources(holders)] == [list("abc")] * 3 + [list("ab")]


def test_snapshot_is_that_of_one_member_even_if_all_disagree() -> None:
    holders = [holder("a", "wxy1"), holder("b", "wx2z"), holder("c", "w3yz")]
    parts = agreed_parts(holders)
    digests = "".join(part.digest[:1].decode() for part in parts)
    assert digests in ("wxy1", "wx2z", "w3yz")
    assert all(part.sources for part in parts)


def test_member_with_most_publications_outweighs_many_with_fewer() -> None:
    holders = [holder("a", "..", 0), holder("b", "..", 0), holder("c", "wx", 10)]
    assert sources(holders) == [["c"], ["c"]]
    assert not is_shared(agreed_parts(holders))


def test_member_with_most_agreement_is_the_reference() -> None:
    holders = [holder("a", "!!"), holder("b", "wx"), holder("c", "wx")]
    assert sources(holders) == [["b", "c"], ["c", "b"]]


def test_prefixes_without_ids_are_not_read() -> None:
    parts = agreed_parts([holder("a", "w..z"), holder("b", "w..z")])
    assert [part.prefix for part in parts] == [0, 3]
    assert agreed_parts([holder("a", "....", 0)]) == []


def test_each_source_is_read_up_to_its_own_mark() -> None:
    (part,) = agreed_parts([holder("a", "w", end=12), holder("b", "w", end=10)])
    assert {source.node: source.mark for source in part.sources} == {"a": 12, "b": 10}


def test_member_with_too_few_digests_is_used_for_those() -> None:
    assert sources([holder("a", "wx"), holder("b", "w")]) == [["a", "b"], ["a"]]


@pytest.mark.parametrize(
    ("given", "is_same"),
    [
        ({}, True),
        ({"store": "b0"}, False),
        ({"epoch": 2}, False),
        ({"offset": 101}, False),
        ({"chain": b"sessother..."}, False),
        ({"chain": b""}, True),  # given by a user
        ({"chain": b"", "offset": 101}, False),
        ({"epoch": 2, "offset": 0, "chain": b""}, True),
        ({"epoch": 2, "offset": 0, "chain": b"sessother..."}, True),
        ({"store": "b0", "offset": 0}, False),
        ({"chain": TRIMMED_CHAIN}, False),
        ({"chain": b"sess" + UNKNOWN_DIGEST}, True),  # inside dropped publications
        ({"chain": b"past" + UNKNOWN_DIGEST}, False),
    ],
)
def test_place_is_valid_in_a_log_with_the_same_publications_before_it(
    given: dict[str, Any], is_same: bool
) -> None:
    survey = LogInfo(1, "a0", 1, 100, 120, 120, (), b"sesschain...")
    place = LogPlace(store="a0", epoch=1, offset=42, chain=b"sesschain...")
    assert has_place(survey, replace(place, **given)) is is_same


def test_place_is_valid_where_the_log_has_dropped_the_publications_before_it() -> None:
    survey = LogInfo(1, "a0", 1, 100, 120, 120, (), TRIMMED_CHAIN, low=60)
    assert has_place(survey, LogPlace(store="a0", epoch=1, offset=42, chain=b"sesschain..."))


def test_members_with_another_charter_or_other_floors_are_excluded() -> None:
    ours, stale = b"terms..\x02", b"terms..\x03"
    holders = [holder("a", "wx"), holder("b", "wx"), holder("c", "wx"), holder("d", "wx")]
    terms = zip(holders, [ours, b"other..\x02", stale, b""], strict=True)
    given = [replace(each, survey=replace(each.survey, terms=text)) for each, text in terms]
    assert sources(given) == [["a", "c"], ["c", "a"]]


@pytest.mark.parametrize(
    ("offset", "policy", "count"),
    [
        (20, Policy(max_count=40), 40),
        (60, Policy(max_count=40), 0),
        (20, Policy(compact=True, max_count=40), 0),
        (20, None, 40),
    ],
)
def test_publications_below_the_log_have_expired_unless_the_topic_is_compacted(
    offset: int, policy: Policy | None, count: int
) -> None:
    survey = LogInfo(1, "a0", 1, 100, 120, 120, (), b"", low=60, policy=policy)
    assert expired(survey, offset) == count


def test_error_for_expired_publications_names_policy_and_number() -> None:
    policy = Policy(max_age_s=3600, max_bytes=1000)
    survey = LogInfo(1, "a0", 1, 100, 120, 120, (), b"", low=60, policy=policy)
    with pytest.raises(DataLossError) as raised:
        first_offset("orders", survey, 20, fails_on_data_loss=True)
    assert str(raised.value) == (
        "40 publications of 'orders' from offset 20 on have expired: the policy of the topic "
        "(max_age_s = 3600, max_bytes = 1000) retains those from offset 60 on; set "
        "failOnDataLoss to false to continue there, or start again with another checkpoint"
    )
    assert first_offset("orders", survey, 20, fails_on_data_loss=False) == 60
    assert first_offset("orders", survey, 0, fails_on_data_loss=True) == 60
    assert first_offset("orders", survey, 80, fails_on_data_loss=True) == 80
