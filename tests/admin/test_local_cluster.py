"""Members of other processes whose publications differ from the majority."""

from __future__ import annotations

from skipring.admin.local_cluster import root_violations
from skipring.core.summaries import EMPTY_ROOT


def test_member_whose_root_differs_from_the_majority_is_named() -> None:
    tries = {"n00": (b"one", 1), "a": (b"two", 2), "b": (b"two", 2)}
    assert list(map(str, root_violations(tries))) == [
        "PUB: n00 has 1 publications, and most members have others"
    ]


def test_equal_roots_are_not_a_violation() -> None:
    assert list(root_violations({"n00": (b"one", 1), "a": (b"one", 1)})) == []
    assert list(root_violations({})) == []


def test_member_whose_index_is_behind_is_not_in_sync() -> None:
    behind = {"a": (EMPTY_ROOT, 1), "b": (EMPTY_ROOT, 0)}
    assert any("a has 1 publications" in str(each) for each in root_violations(behind))
    assert len(list(root_violations({"a": (EMPTY_ROOT, 1), "b": (EMPTY_ROOT, 1)}))) == 2
    assert list(root_violations({"a": (EMPTY_ROOT, 0), "b": (EMPTY_ROOT, 0)})) == []
