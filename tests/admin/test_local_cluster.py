"""Members of other processes whose publications differ from the majority."""

from __future__ import annotations

from skipring.admin.local_cluster import root_violations


def test_member_whose_root_differs_from_the_majority_is_named() -> None:
    tries = {"n00": (b"one", 1), "a": (b"two", 2), "b": (b"two", 2)}
    assert list(map(str, root_violations(tries))) == [
        "PUB: n00 has 1 publications, and most members have others"
    ]


def test_equal_roots_are_not_a_violation() -> None:
    assert list(root_violations({"n00": (b"one", 1), "a": (b"one", 1)})) == []
    assert list(root_violations({})) == []
