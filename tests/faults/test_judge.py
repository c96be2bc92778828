"""Judge: reports lost, duplicated and invented payloads, and nothing else."""

from __future__ import annotations

import pytest

from faults.judge import Judgement, Ledger, judge


def ledger(acknowledged: list[bytes], tried: list[bytes]) -> Ledger:
    made = Ledger()
    for payload in tried:
        made.attempt(payload)
    made.acknowledge_all(acknowledged)
    return made


def counts(judgement: Judgement) -> tuple[int, int, int]:
    return judgement.lost, judgement.duplicated, judgement.invented


BOOKS = ledger([b"1", b"2", b"3"], [b"maybe"])


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ([b"1", b"2", b"3"], (0, 0, 0)),
        ([b"3", b"maybe", b"1", b"2"], (0, 0, 0)),
        ([b"1", b"3"], (1, 0, 0)),
        ([], (3, 0, 0)),
        ([b"1", b"2", b"3", b"3", b"3"], (0, 1, 0)),
        ([b"1", b"2", b"3", b"maybe", b"maybe"], (0, 1, 0)),
        ([b"1", b"2", b"3", b"never"], (0, 0, 1)),
        ([b"1", b"1", b"never"], (2, 1, 1)),
    ],
)
@pytest.mark.parametrize("who", ["survivor", "reader"])
def test_loss_duplicate_and_invention_of_one_holder_are_counted(
    held: list[bytes], expected: tuple[int, int, int], who: str
) -> None:
    found = judge(BOOKS, {who: held})
    assert counts(found) == expected
    assert bool(found.reasons) == any(expected)


def test_payload_that_several_holders_lack_counts_once() -> None:
    found = judge(BOOKS, {"a": [b"1"], "b": [b"1", b"2"], "reader": [b"1", b"2", b"3"]})
    assert counts(found) == (2, 0, 0)
    assert found.reasons == ("a lacks '2', '3'", "b lacks '3'")


def test_payload_of_a_stranger_is_neither_duplicated_nor_invented() -> None:
    made = ledger([b"1"], [])
    made.tolerate(b"strange")
    assert judge(made, {"a": [b"1", b"strange", b"strange"], "b": [b"1"]}) == Judgement()


def test_judgements_of_several_rings_are_added() -> None:
    one, other = Judgement(1, 0, 2, ("x",)), Judgement(0, 3, 1, ("y",))
    assert one + other == Judgement(1, 3, 3, ("x", "y"))
