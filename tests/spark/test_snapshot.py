"""Which members are read from: one snapshot, and as many members as agree with it."""

from __future__ import annotations

from skipring.rpc.log_reader import MemberLog
from skipring.spark.snapshot import agreed_parts, is_shared
from skipring.wire.rpc import LogInfo


def holder(node: str, digests: str, count: int = 10, end: int = 10) -> MemberLog:
    """A member with one letter for each digest; a dot for a prefix without ids."""
    texts = tuple(b"" if letter == "." else letter.encode() * 16 for letter in digests)
    survey = LogInfo(1, "5eed", 0, end, end, count, texts, b"")
    return MemberLog(node=node, address=f"{node}:1", survey=survey)


def sources(holders: list[MemberLog]) -> list[list[str]]:
    return [[source.node for source in part.sources] for part in agreed_parts(holders)]


def test_members_that_agree_share_the_prefixes() -> None:
    holders = [holder("a", "wxyz"), holder("b", "wxyz"), holder("c", "wxyz")]
    assert [each[0] for each in sources(holders)] == ["a", "b", "c", "a"]
    assert is_shared(agreed_parts(holders))


def test_a_member_that_disagrees_is_left_out_where_it_does() -> None:
    holders = [holder("a", "wxyz"), holder("b", "wxyz"), holder("c", "wxy!")]
    assert [sorted(each) for each in sources(holders)] == [list("abc")] * 3 + [list("ab")]


def test_the_snapshot_is_the_one_of_a_single_member_also_if_all_disagree_somewhere() -> None:
    holders = [holder("a", "wxy1"), holder("b", "wx2z"), holder("c", "w3yz")]
    parts = agreed_parts(holders)
    digests = "".join(part.digest[:1].decode() for part in parts)
    assert digests in ("wxy1", "wx2z", "w3yz")
    assert all(part.sources for part in parts)


def test_member_with_most_publications_outweighs_many_with_fewer() -> None:
    holders = [holder("a", "..", 0), holder("b", "..", 0), holder("c", "wx", 10)]
    assert sources(holders) == [["c"], ["c"]]
    assert not is_shared(agreed_parts(holders))


def test_of_those_with_the_same_number_the_one_with_whom_most_agree_is_believed() -> None:
    holders = [holder("a", "!!"), holder("b", "wx"), holder("c", "wx")]
    assert sources(holders) == [["b", "c"], ["c", "b"]]


def test_prefixes_without_ids_are_not_read() -> None:
    parts = agreed_parts([holder("a", "w..z"), holder("b", "w..z")])
    assert [part.prefix for part in parts] == [0, 3]
    assert agreed_parts([holder("a", "....", 0)]) == []


def test_each_source_is_read_up_to_its_own_mark() -> None:
    (part,) = agreed_parts([holder("a", "w", end=12), holder("b", "w", end=10)])
    assert {source.node: source.mark for source in part.sources} == {"a": 12, "b": 10}


def test_a_member_that_answers_with_too_few_digests_is_no_obstacle() -> None:
    assert sources([holder("a", "wx"), holder("b", "w")]) == [["a", "b"], ["a"]]
