"""Set reconciliation: missing publications of each side, and termination of every exchange."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from skipring.core.config import ProtocolConfig, Rule, Rules
from skipring.core.messages import CheckAndPublish, CheckTrie, Message, Publications
from skipring.core.prefix import ALL, Prefix, apart
from skipring.core.publications import ID_BITS, Publication
from skipring.core.reconcile import SCANNED_IDS_MAX, Reconciler
from skipring.core.summaries import (
    DIGEST_BYTES,
    SHORT_BYTES,
    RangeSummary,
    Summary,
    Truncation,
    leaf_digest,
)
from tests.support.machines import FAST, FIXED, PAPER, only, rule_sets, unhurried, without
from tests.support.sessions import P, Party, Talk, id_at, limited, opaque

JUNK = bytes(DIGEST_BYTES)


# Small sets are listed at once, which hides the levels; these configurations have shorter lists.
LEVELS = limited(listed_ids_max=0, batch_levels=1)


CONFIGS = {
    "fast": limited(),
    "fixed": limited(FIXED),
    "lists of one": limited(listed_ids_max=1, batch_levels=2),
    "no lists": LEVELS,
    "unbatched": limited(without(Rule.BATCH)),
    "only T4": limited(only(Rule.COVER)),
}


SETTINGS = ["fast", "fixed", "lists of one", "unbatched"]


SOME = range(0, 256, 30)  # of all 256 sets over three bits, small and large


def subsets(bits: int) -> list[list[Publication]]:
    """Return all sets over {0,1}^bits."""
    keys = [P("".join(word)) for word in product("01", repeat=bits)]
    return [[p for place, p in enumerate(keys) if m >> place & 1] for m in range(1 << len(keys))]


def equal_pairs(sets: list[list[Publication]], askers: range, config: ProtocolConfig) -> int:
    """Return how many ordered pairs of different sets are equal after one session of the first."""
    us = {place: Party("u", sets[place], config) for place in askers}
    vs = [Party("v", publications, config) for publications in sets]
    pairs = ((u, v) for u in askers for v in range(len(sets)) if u != v)
    return sum(Talk(us[u].copy(), vs[v].copy()).session("u").is_equal for u, v in pairs)


def sent_ids(messages: list[Message]) -> list[bytes]:
    return [p.id for m in messages if isinstance(m, Publications) for p in m.publications]


# -- every pair of small sets ------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_T4_all_240_pairs_of_sets_over_two_bits_become_equal_in_one_session(
    config: ProtocolConfig,
) -> None:
    assert equal_pairs(subsets(2), range(16), config) == 240


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
@pytest.mark.parametrize("name", SETTINGS)
def test_T4_all_65280_pairs_of_sets_over_three_bits_become_equal_in_one_session(
    name: str, part: int
) -> None:
    assert equal_pairs(subsets(3), range(part * 16, part * 16 + 16), CONFIGS[name]) == 16 * 255


@pytest.mark.heavy
@pytest.mark.parametrize("name", SETTINGS)
def test_T4_some_of_these_pairs_become_equal_with_any_rules_and_limits(name: str) -> None:
    assert equal_pairs(subsets(3), SOME, CONFIGS[name]) == len(SOME) * 255


@pytest.mark.parametrize(
    ("rules", "equal"),
    [
        (PAPER, 80),
        (only(Rule.COMPLEMENT), 104),
        (without(Rule.COVER, Rule.COMPLEMENT), 120),
        (without(Rule.COVER), 148),
        (without(Rule.COMPLEMENT), 240),
        (only(Rule.COVER), 240),
    ],
    ids=["paper", "only T3", "without T3, T4", "without T4", "without T3", "only T4"],
)
def test_T4_alone_makes_every_pair_equal_and_T3_helps_some_without_it(
    rules: Rules, equal: int
) -> None:
    assert equal_pairs(subsets(2), range(16), limited(rules)) == equal


@pytest.mark.heavy
def test_one_session_of_the_paper_makes_few_of_the_65280_pairs_equal() -> None:
    """T4: one in ten, 6560 of 65280; the test tries one in 15."""
    some = range(0, 256, 15)
    assert 0 < equal_pairs(subsets(3), some, limited(PAPER)) < len(some) * 255 / 5


# -- T3 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_T3_all_missing_publications_beside_a_deeper_node_are_sent(
    on: bool,
) -> None:
    """In u the node under 1 is three bits longer: 11, 101 and 1001 are missing."""
    rules = only(Rule.COMPLEMENT) if on else PAPER
    v = [P("0"), P("1000"), P("1001"), P("101"), P("11")]
    talk = Talk([P("0"), P("1000")], v, limited(rules)).session("u")
    missing = {id_at("11"), id_at("101"), id_at("1001")} if on else {id_at("11")}
    assert set(sent_ids(talk.messages())) == missing
    assert talk.is_equal is on


def test_T3_publications_that_the_requester_holds_are_not_sent() -> None:
    party = Party("v", [P("0"), P("1000"), P("101"), P("11")], limited(only(Rule.COMPLEMENT)))
    held = Summary(Prefix.of_id(id_at("1000")), leaf_digest(id_at("1000")))
    claim = RangeSummary.make(Prefix.parse("1"), [held])
    sent = party.receive(CheckAndPublish("u", (claim,), 0))
    assert sent == [("u", Publications((P("101"), P("11"))))]


# -- T4 ----------------------------------------------------------------------------------------


def test_T4_receiver_of_a_summary_sends_the_publications_missing_under_its_prefix() -> None:
    party = Party("v", [P("00"), P("01"), P("1")], LEVELS)
    held = Summary(Prefix.of_id(id_at("00")), leaf_digest(id_at("00")))
    sent = party.receive(CheckTrie("u", (RangeSummary.make(Prefix.parse("0"), [held]),)))
    assert sent == [("u", Publications((P("01"),)))]


def test_T4_empty_summary_requests_everything_under_its_prefix() -> None:
    party = Party("v", [P("00"), P("01"), P("1")])
    sent = party.receive(CheckTrie("u", (RangeSummary.make(Prefix.parse("0")),)))
    assert sent == [("u", Publications((P("00"), P("01"))))]


def test_T4_difference_is_described_in_full_whichever_side_asked() -> None:
    """The summary of a prefix names everything below it."""
    trie = Party("v", [P("000"), P("001"), P("01"), P("1")]).replica.index()
    answer = Reconciler(trie, LEVELS, 0)
    answer.compare(RangeSummary.make(ALL, [Summary(ALL, JUNK)]), is_pushed=True)
    ((claim,),) = (finding.claims for finding in answer.findings)
    covered = [s.prefix for s in claim.summaries()]
    assert claim.prefix == ALL
    assert [prefix.bits for prefix in covered] == ["0"]
    assert claim.short_ids() == [Truncation(0).short_id(id_at("1"))]


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_T4_list_hides_a_difference_permanently_without_the_rule(on: bool) -> None:
    """The paper relies on alternation: the side that holds more describes some level.

    A list ends the exchange at once. Here v can list its ids under 0000 and u cannot, so that v
    sends the last message whichever side starts, and u, which is missing nothing, requests nothing.
    """
    shared = [id_at("0000" + format(number, "05b")) for number in range(32)]
    shared += [id_at(format(number, "04b")) for number in range(1, 16)]
    rules = without(*(() if on else (Rule.COVER,)))
    talk = Talk(opaque([*shared, id_at("00000000011111")]), opaque(shared), limited(rules))
    for number in range(100):
        talk.session("uv"[number % 2])
    assert talk.is_equal is on


# -- T6 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_T6_leaves_are_sent_without_digests(on: bool) -> None:
    rules = only(Rule.NO_NOISE) if on else PAPER
    party = Party("v", [P("0"), P("1")], limited(rules))
    ((_, answer),) = party.receive(CheckTrie("u", (RangeSummary.make(ALL, [Summary(ALL, JUNK)]),)))
    assert isinstance(answer, CheckTrie)
    (claim,) = answer.claims
    assert (len(claim.digests), len(claim.leaves)) == ((0, 16) if on else (32, 0))


# -- T9 ----------------------------------------------------------------------------------------


def labels_of(message: Message) -> list[Prefix]:
    """Return the prefixes that a message asks to compare."""
    if not isinstance(message, CheckTrie | CheckAndPublish):
        return []
    return [s.prefix for claim in message.claims for s in claim.summaries()]


def prefixes() -> SearchStrategy[Prefix]:
    """Draw prefixes of few bits, of ids that the parties hold, or of full length."""
    few = st.text("01", max_size=4).map(Prefix.parse)
    held = st.builds(Prefix.of_id, st.sampled_from(IDS), st.integers(0, ID_BITS))
    return few | held | st.integers(0, 2**ID_BITS - 1).map(lambda value: Prefix(ID_BITS, value))


IDS = [id_at(format(number, "05b")) for number in range(0, 32, 3)]


@st.composite
def claims(draw: st.DrawFn) -> RangeSummary:
    """Draw valid range summaries, including those that no correct node makes."""
    cover = draw(prefixes())
    size = draw(st.sampled_from((SHORT_BYTES, DIGEST_BYTES)))
    below = apart(
        cover.extended(more)
        for more in draw(st.lists(prefixes(), max_size=4))
        if cover.length + more.length <= ID_BITS
    )
    known = st.sampled_from(IDS).map(lambda key: leaf_digest(key)[:size])
    digest = known | st.binary(min_size=size, max_size=size)
    short = st.sampled_from(IDS).map(Truncation(0).short_id) | st.binary(min_size=8, max_size=8)
    leaves = draw(st.lists(short, max_size=4))
    return RangeSummary.make(cover, [Summary(prefix, draw(digest)) for prefix in below], leaves)


def checks(sender: str) -> SearchStrategy[CheckTrie | CheckAndPublish]:
    several = st.lists(claims(), max_size=3).map(tuple)
    session = st.integers(0, 7)
    return st.builds(CheckTrie, st.just(sender), several, session, st.booleans()) | st.builds(
        CheckAndPublish, st.just(sender), several, session, several
    )


@unhurried
@given(
    message=checks("u"),
    rules=rule_sets(),
    held=st.lists(st.sampled_from(IDS), unique=True),
    others=st.lists(st.sampled_from(IDS), unique=True),
    limits=st.fixed_dictionaries(
        {"batch_levels": st.integers(1, 4), "listed_ids_max": st.integers(0, 4)}
    ),
)
def test_T9_any_exchange_terminates_even_from_forged_summaries(
    message: CheckTrie | CheckAndPublish,
    rules: Rules,
    held: list[bytes],
    others: list[bytes],
    limits: dict[str, int],
) -> None:
    talk = Talk(opaque(others), opaque(held), limited(rules, **limits))
    talk.post("u", [("v", message)])
    talk.deliver_all(messages_max=1000)
    assert talk.u.ids | talk.v.ids == {*held, *others}, "a claim brings no publication about"


@unhurried
@given(
    message=checks("u"),
    rules=rule_sets(),
    held=st.lists(st.sampled_from(IDS), unique=True),
    listed=st.integers(0, 4),
)
def test_T9_reply_strictly_extends_a_prefix_of_the_request(
    message: CheckTrie | CheckAndPublish, rules: Rules, held: list[bytes], listed: int
) -> None:
    party = Party("v", opaque(held), limited(rules, listed_ids_max=listed))
    asked = [*labels_of(message), *(claim.prefix for claim in message.claims)]
    for _, reply in party.receive(message):
        for label in labels_of(reply):
            assert any(old.covers(label) and old != label for old in asked)


@pytest.mark.parametrize("config", [*CONFIGS.values(), limited(PAPER)], ids=[*CONFIGS, "paper"])
def test_T9_forged_root_causes_no_more_messages_than_the_tries_have_nodes(
    config: ProtocolConfig,
) -> None:
    """Includes two equal tries, where only the request is wrong."""
    ids = [id_at(format(number, "06b")) for number in range(64)]
    for held in (ids, ids[::2], ids[40:]):
        talk = Talk(opaque(ids), opaque(held), config)
        talk.post("u", [("v", CheckTrie("u", (RangeSummary.make(ALL, [Summary(ALL, JUNK)]),)))])
        talk.deliver_all(messages_max=300)
        assert len([m for m in talk.messages() if labels_of(m)]) <= 2 * 64


@pytest.mark.parametrize("rules", [FAST, PAPER], ids=["fast", "paper"])
def test_T9_wrong_digest_of_one_leaf_is_not_answered(rules: Rules) -> None:
    party = Party("v", [P("1")], limited(rules))
    leaf = Summary(Prefix.of_id(id_at("1")), JUNK)
    assert party.receive(CheckTrie("u", (RangeSummary.make(ALL, [leaf]),))) == []


def test_T9_prefixes_longer_than_an_id_are_refused() -> None:
    with pytest.raises(ValueError, match="not a prefix"):
        Prefix(ID_BITS + 1, 0)
    with pytest.raises(ValueError, match="not a prefix"):
        RangeSummary(b"\x80" * 34)
    whole = Prefix.of_id(id_at("1"))
    one_more = bytes((0b11000000,))  # the prefix 1, relative to a cover that is a full id
    with pytest.raises(ValueError, match="not a prefix"):
        RangeSummary(whole.pack(), one_more, JUNK)


def test_T9_message_with_a_prefix_longer_than_an_id_is_refused() -> None:
    whole = Prefix.of_id(id_at("1"))
    honest = msgspec.msgpack.encode(CheckTrie("u", (RangeSummary(whole.pack()),)))
    assert msgspec.msgpack.decode(honest, type=CheckTrie).claims[0].prefix == whole
    forged = [10, "u", [[whole.pack(), b"\xc0", JUNK, b""]], 0, False]
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(forged), type=CheckTrie)


def test_list_is_compared_with_a_bounded_number_of_ids() -> None:
    """A forged leaf under the root is answered with a description instead of a scan."""
    ids = [id_at(format(8 * number, "012b")) for number in range(SCANNED_IDS_MAX + 1)]
    party = Party("v", opaque(ids))
    sent = party.receive(CheckTrie("u", (RangeSummary.make(ALL, leaves=[bytes(8)]),)))
    assert [type(message) for _, message in sent] == [CheckTrie]


# -- batch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_batch_all_open_prefixes_go_into_one_message(on: bool) -> None:
    """Two subtries differ; the answer is one message, or one for each without the rule."""
    rules = without(*(() if on else (Rule.BATCH,)))
    party = Party("v", [P(bits) for bits in ("000", "001", "100", "101")], limited(rules))
    told = [Summary(Prefix.parse(bits), JUNK) for bits in ("00", "10")]
    sent = party.receive(CheckTrie("u", (RangeSummary.make(ALL, told),)))
    assert [type(message) for _, message in sent] == [CheckTrie] * (1 if on else 2)


@pytest.mark.parametrize(("on", "levels"), [(True, 4), (True, 2), (False, 4)])
def test_batch_answer_descends_several_levels(on: bool, levels: int) -> None:
    rules = without(*(() if on else (Rule.BATCH,)))
    ids = [id_at(format(number, "07b")) for number in range(128)]
    party = Party("v", opaque(ids), limited(rules, batch_levels=levels))
    ((_, answer),) = party.receive(CheckTrie("u", (RangeSummary.make(ALL, [Summary(ALL, JUNK)]),)))
    assert {label.length for label in labels_of(answer)} == {levels if on else 1}


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_batch_few_ids_are_listed_at_once(on: bool) -> None:
    rules = without(*(() if on else (Rule.BATCH,)))
    party = Party("v", [P(format(number, "05b")) for number in range(32)], limited(rules))
    ((_, answer),) = party.receive(CheckTrie("u", (RangeSummary.make(ALL, [Summary(ALL, JUNK)]),)))
    assert isinstance(answer, CheckTrie)
    (claim,) = answer.claims
    assert len(claim.short_ids()) == (32 if on else 0)


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_batch_session_over_4096_ids_needs_few_messages(on: bool) -> None:
    ids = [id_at(format(number, "012b")) for number in range(4096)]
    rules = without(*(() if on else (Rule.BATCH,)))
    u, v = (
        [key for key in ids if key not in ids[::400]],
        [key for key in ids if key not in ids[7::400]],
    )
    talk = Talk(opaque(u), opaque(v), limited(rules, hashed_ids=8192)).session("u")
    assert talk.is_equal
    checks_sent = [m for m in talk.messages() if type(m) is not Publications]
    assert (len(checks_sent) <= 8) is on
