"""Section 4.2: publishing by comparison of Patricia tries; its example and its two theorems.

In all of ``tests/paper``, the paper's publication P is a batch (``RecordBatch``): its key is the
batch id, and a member has all records of a batch or none (decision 53). A batch has one record
unless a test says otherwise.
"""

from __future__ import annotations

import pytest

from skipring.core.batches import RecordBatch
from skipring.core.config import Rule, Rules
from skipring.core.messages import CheckTrie, Publications
from skipring.core.prefix import ALL, Prefix
from skipring.core.summaries import inner_digest, leaf_digest
from skipring.core.trie import PublicationTrie
from tests.support.machines import FAST, PAPER, only, without
from tests.support.sessions import Glossary, P, Talk, limited

# The tries of the example: P1 and P2 under 0, P3 at 100, and P4 at 101, which v is missing.
P1, P2, P3, P4 = P("00"), P("01"), P("100"), P("101")
U, V = (P1, P2, P3, P4), (P1, P2, P3)

H1, H2, H3, H4 = (leaf_digest(p.id) for p in U)
H12, H34 = inner_digest(H1, H2), inner_digest(H3, H4)

EXAMPLE = Glossary(
    publications={P1.id: "P1", P2.id: "P2", P3.id: "P3", P4.id: "P4"},
    bits={P1.id: "00", P2.id: "01", P3.id: "100", P4.id: "101"},
    digests={
        H3: "h(P3)",
        H12: "h(h(P1)h(P2))",
        H34: "h(h(P3)h(P4))",
        inner_digest(H12, H34): "r_u",
        inner_digest(H12, H3): "r_v",
    },
)


def trie_of(*publications: RecordBatch) -> PublicationTrie:
    trie = PublicationTrie()
    trie.add_many((p.id, place) for place, p in enumerate(publications))
    return trie


def test_labels_of_inner_nodes_are_the_longest_common_prefixes_of_their_children() -> None:
    trie = trie_of(*U)
    root = trie.node()
    assert root is not None
    assert root.prefix == ALL
    zero, one = trie.children(root)
    assert (zero.prefix.bits, one.prefix.bits) == ("0", "10")
    assert [leaf.key for leaf in trie.children(one)] == [P3.id, P4.id]


def test_hash_of_an_inner_node_covers_the_hashes_of_its_children() -> None:
    """The text says over the hashes of their labels; its own example means this (T1)."""
    trie = trie_of(*U)
    assert trie.digest(Prefix.parse("0")) == H12
    assert trie.digest(Prefix.parse("10")) == H34
    assert trie.root() == inner_digest(H12, H34)


def test_example_of_the_paper_ends_without_an_answer_if_u_asks_first() -> None:
    """ "Both comparisons result in the hashes being equal, which ends the chain of messages"."""
    talk = Talk(U, V, limited(PAPER)).session("u")
    assert EXAMPLE.transcript(talk) == [
        "u -> v  CheckTrie (-, r_u)",
        "v -> u  CheckTrie (0, h(h(P1)h(P2))) (100, h(P3))",
    ]
    assert not talk.is_equal


def test_example_of_the_paper_sends_v_its_missing_publication_if_v_asks_first() -> None:
    """ "Thus, p = (10 o (1-0)) = 101"."""
    talk = Talk(U, V, limited(PAPER)).session("v")
    assert EXAMPLE.transcript(talk) == [
        "v -> u  CheckTrie (-, r_v)",
        "u -> v  CheckTrie (0, h(h(P1)h(P2))) (10, h(h(P3)h(P4)))",
        "v -> u  CheckAndPublish (100, h(P3)) p=101",
        "u -> v  Publications P4",
    ]
    assert talk.is_equal


def test_result_depends_on_the_asking_side_in_the_example_of_the_paper() -> None:
    """ "The example shows that it is important at which subscriber the initial [...] request"."""
    ends = {start: Talk(U, V, limited(PAPER)).session(start).is_equal for start in "uv"}
    assert ends == {"u": False, "v": True}


@pytest.mark.parametrize("start", ["u", "v"])
@pytest.mark.parametrize(
    "rules", [FAST, without(Rule.BATCH), only(Rule.COVER)], ids=["fast", "unbatched", "only T4"]
)
def test_result_does_not_depend_on_the_asking_side_with_the_cover_rule(
    rules: Rules, start: str
) -> None:
    """T4: the receiver of a summary sends what is missing under its prefix."""
    talk = Talk(U, V, limited(rules)).session(start)
    assert talk.is_equal
    assert [each for _, each in talk.v.delivered] == [P4]
    assert talk.u.delivered == []


@pytest.mark.parametrize("rules", [PAPER, FAST], ids=["paper", "fast"])
def test_equal_tries_are_not_answered(rules: Rules) -> None:
    """Case (i), and closure: "no further message being sent out as an answer"."""
    talk = Talk(U, U, limited(rules)).session("u").session("v")
    assert [type(message) for message in talk.messages()] == [CheckTrie, CheckTrie]


@pytest.mark.parametrize("rules", [PAPER, FAST], ids=["paper", "fast"])
def test_only_publications_missing_at_the_receiver_are_sent(rules: Rules) -> None:
    """ "Only those publications are sent out that are assumed to be missing at the receiver"."""
    talk = Talk(U, V, limited(rules)).session("v").session("u")
    sent = [p for message in talk.messages(Publications) for p in message.publications]
    assert sent == [P4]


def test_node_without_publications_under_a_label_requests_all_of_them() -> None:
    """Case (iii) where no node c is found: "deliver all publications with prefix t_v.label"."""
    Q1, Q2, Q3, Q4 = P("0000"), P("0001"), P("01"), P("1")  # noqa: N806 - as the paper's P1
    h1, h2, h3, h4 = (leaf_digest(q.id) for q in (Q1, Q2, Q3, Q4))
    glossary = Glossary(
        publications={Q1.id: "Q1", Q2.id: "Q2"},
        bits={Q4.id: "1"},
        digests={inner_digest(h1, h2): "h(h(Q1)h(Q2))", h4: "h(Q4)", inner_digest(h3, h4): "r_u"},
    )
    talk = Talk((Q3, Q4), (Q1, Q2, Q4), limited(PAPER)).session("u")
    assert glossary.transcript(talk) == [
        "u -> v  CheckTrie (-, r_u)",
        "v -> u  CheckTrie (000, h(h(Q1)h(Q2))) (1, h(Q4))",
        "u -> v  CheckAndPublish p=000",
        "v -> u  Publications Q1 Q2",
    ]
