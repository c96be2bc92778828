"""Quotas of one name at a supervisor."""

from __future__ import annotations

from collections import Counter

import pytest

from skipring.core import quotas as quotas_module
from skipring.core.quotas import SUBJECTS_PER_NAME_MAX, TOPICS_MAX, TOPICS_PER_NAME_MAX, Quotas


def test_name_gets_a_quarter_of_the_topics_and_then_a_reason() -> None:
    quotas = Quotas()
    for _ in range(TOPICS_PER_NAME_MAX):
        assert quotas.refuse_topic("a") is None
    reason = quotas.refuse_topic("a")
    assert reason is not None
    assert reason.startswith(f"a has {TOPICS_PER_NAME_MAX} topics at this supervisor")
    assert quotas.refuse_topic("b") is None
    assert 4 * TOPICS_PER_NAME_MAX <= TOPICS_MAX


def test_topics_of_all_names_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas_module, "TOPICS_MAX", 3)
    quotas = Quotas()
    answers = [quotas.refuse_topic(name) for name in "abcd"]
    assert answers == [None, None, None, "this supervisor has 3 topics and serves no more"]


def test_subjects_of_one_interval_are_bounded_and_one_refusal_is_sent() -> None:
    quotas = Quotas()
    refused = sent = 0
    for _ in range(2 * SUBJECTS_PER_NAME_MAX):
        if quotas.refuse_subject("a") is not None:
            refused += 1
            sent += quotas.is_first_excess("a")
    assert (refused, sent) == (SUBJECTS_PER_NAME_MAX, 1)
    assert quotas.refuse_subject("b") is None
    quotas.on_tick([])
    assert quotas.refuse_subject("a") is None


def test_wrong_charges_are_gone_after_a_tick() -> None:
    quotas = Quotas()
    quotas._topics = Counter({"a": 10**9, "b": -7})
    quotas._subjects = Counter({"a": 10**9})
    quotas._total = 10**9
    quotas.on_tick(["b", "b"])
    assert quotas.refuse_topic("a") is None
    assert quotas.refuse_subject("a") is None
    allowed = [quotas.refuse_topic("b") is None for _ in range(TOPICS_PER_NAME_MAX)]
    assert sum(allowed) == TOPICS_PER_NAME_MAX - 2  # two topics of b exist
    others = [quotas.refuse_topic(f"x{number}") is None for number in range(TOPICS_MAX)]
    assert sum(others) == TOPICS_MAX - TOPICS_PER_NAME_MAX - 1  # all names together
