"""Limits of names: the longest is accepted, longer ones and other characters are refused."""

from __future__ import annotations

import pytest

from skipring.core.limits import check_node, check_text, match_node
from skipring.errors import MessageError


@pytest.mark.parametrize("name", ["x", "x" * 64, "A-b_c.9"])
def test_node_name_of_1_to_64_plain_characters_is_accepted(name: str) -> None:
    check_node(name)
    assert match_node(name) is not None


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "ä", "a/b", "a\n"])
def test_node_name_has_1_to_64_plain_characters(name: str) -> None:
    assert match_node(name) is None
    with pytest.raises(MessageError):
        check_node(name)


def test_text_with_a_lone_surrogate_is_refused() -> None:
    check_text("ä\U0001f600")
    with pytest.raises(MessageError, match="lone surrogate"):
        check_text("a\udc80")
