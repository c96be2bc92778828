"""Exchange of terms, and members that were away for longer than tombstones last."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.effects import SaveTerms
from skipring.core.events import Received
from skipring.core.messages import (
    CheckAndPublish,
    CheckTrie,
    Publications,
    PublishNew,
    Terms,
    TrieEqual,
)
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.prefix import ALL
from skipring.core.retention.floors import NO_FLOORS, FloorStamps
from skipring.core.retention.member import STALE
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import RangeSummary
from skipring.core.terms import MET_TICKS, PARTNERS_MAX, TERMS_TICKS, is_fresh, is_same
from tests.support.fake_host import FakeHost, sent
from tests.support.retention import (
    AGED,
    COMPACTED,
    COUNTED,
    HOUR,
    NOW,
    charter_row,
    held,
    member,
    retention_of,
    row,
    ticked,
)

OLD = NOW - 3 * HOUR
LEFT = "a"  # the left neighbour of the member


def receives(host: FakeHost[Subscriber], message: object, sender: NodeId) -> list[object]:
    """Deliver a message; return the messages that are sent about publications."""
    effects = host.handle(Received(message, sender))  # type: ignore[arg-type]
    kinds = (CheckTrie, CheckAndPublish, Publications, Terms, TrieEqual)
    return [each for _, each in sent(effects) if isinstance(each, kinds)]


def checks(
    host: FakeHost[Subscriber], partner: FakeHost[Subscriber], sender: NodeId = LEFT
) -> list[object]:
    """Let a partner compare its whole trie with that of a member."""
    found: list[CheckTrie] = []
    for _ in range(200):
        effects = ticked(partner)
        found += [each for _, each in sent(effects) if type(each) is CheckTrie and not each.confirm]
        if found:
            break
    (first,) = found
    return receives(host, replace(first, sender=sender), sender)


def compare(host: FakeHost[Subscriber], partner: FakeHost[Subscriber]) -> list[RecordBatch]:
    """Let a partner start a session; return the rows that the member sends to it."""
    answers, taught = checks(host, partner), list[RecordBatch]()
    for _ in range(4):
        taught += [p for m in answers if isinstance(m, Publications) for p in m.publications]
        replies = [each for m in answers for each in receives(partner, renamed(m), LEFT)]
        answers = [each for m in replies for each in receives(host, renamed(m), LEFT)]
    return taught


def renamed(message: object) -> object:
    return replace(message, sender=LEFT) if hasattr(message, "sender") else message  # type: ignore[type-var]


def terms_of(host: FakeHost[Subscriber]) -> bytes:
    return host.machine.replica.terms


def as_terms(host: FakeHost[Subscriber], sender: NodeId, **changes: object) -> Terms:
    """Return the terms of a member as another node would send them."""
    retention = retention_of(host)
    made = Terms(sender, retention.charters.batches(), retention.floors.stamps, NOW)
    return replace(made, **changes)


def test_digest_is_empty_without_a_charter_and_depends_on_charter_and_floors() -> None:
    hosts = [member(None), member(AGED), member(COUNTED), member(AGED, now=NOW + 9 * HOUR)]
    digests = [terms_of(host) for host in hosts]
    assert digests[0] == b""
    assert len(set(digests)) == 4
    assert terms_of(member(AGED)) == digests[1]


def test_flag_of_a_stale_member_does_not_make_terms_different() -> None:
    digest = bytes(8)
    stale = digest[:-1] + bytes([STALE])
    assert is_same(digest, stale)
    assert (is_fresh(digest), is_fresh(stale), is_fresh(b"")) == (True, False, False)
    assert not is_same(digest, b"")
    assert not is_same(digest, b"x" + digest[1:])


def test_members_with_different_terms_exchange_them_before_they_compare() -> None:
    host, other = member(COUNTED, row(0)), member(None, row(1))
    (question,) = checks(host, other)
    assert question == as_terms(host, "m", asks=True)
    assert [type(each) for each in checks(host, other)] != [Terms]


@pytest.mark.parametrize("policy", [None, AGED])
def test_members_with_equal_terms_compare_at_once(policy: object) -> None:
    host, other = member(AGED, row(0)), member(AGED, row(1))
    assert all(type(each) is not Terms for each in checks(host, other))


def test_exchange_is_repeated_after_some_ticks_and_remembers_few_partners() -> None:
    host = member(AGED)
    claim = CheckTrie("x", (), 1, terms=b"")
    assert [type(each) for each in receives(host, claim, "x")] == [Terms]
    assert receives(host, claim, "x") == []
    ticked(host, ticks=MET_TICKS)
    assert [type(each) for each in receives(host, claim, "x")] == [Terms]
    for number in range(2 * PARTNERS_MAX):
        receives(host, replace(claim, sender=f"n{number}"), f"n{number}")
    exchange = host.machine.replication.terms
    assert exchange is not None
    assert len(exchange.state().met) <= PARTNERS_MAX


def test_terms_teach_the_charter_and_are_answered_on_request_only() -> None:
    teacher, host = member(AGED), member(None, row(0, OLD))
    assert receives(host, as_terms(teacher, LEFT), LEFT) == []
    ticked(host)
    (answer,) = receives(host, as_terms(teacher, LEFT, asks=True), LEFT)
    assert isinstance(answer, Terms)
    assert answer.charters == (charter_row(AGED),)
    ticked(host, ticks=3)
    assert held(host) == set()


@pytest.mark.parametrize("sender", ["m", SUPERVISOR])
def test_terms_in_the_name_of_this_node_or_the_supervisor_are_ignored(sender: NodeId) -> None:
    host = member(None)
    receives(host, as_terms(member(AGED), sender, asks=True), sender)
    assert host.machine.replica.retention is None


def test_rows_in_terms_that_are_no_charters_are_ignored() -> None:
    host = member(None)
    receives(host, Terms(LEFT, (row(0), row(1)), NO_FLOORS, NOW), LEFT)
    assert host.stored == []


def test_floor_of_a_ring_neighbour_is_adopted_and_rows_go_while_its_terms_are_handled() -> None:
    edge = NOW - HOUR - 40 * 1_000_000
    host = member(AGED, row(0, edge), now=NOW - 70 * 1_000_000)
    floor = retention_of(member(AGED, now=NOW)).floors.stamps
    for node in (LEFT, "e", "f", "k", "j", "b"):
        receives(host, Terms(node, (), NO_FLOORS, NOW), node)
    before = retention_of(host).floors.stamps
    receives(host, as_terms(member(AGED), LEFT), LEFT)
    assert before.age <= retention_of(host).floors.stamps.age == floor.age


@pytest.mark.parametrize("stamp", [NOW - 1, NOW + 9 * HOUR, (1 << 63) - 1])
def test_no_message_destroys_a_row_that_clock_and_rows_do_not(stamp: int) -> None:
    host = member(AGED, row(0, NOW - 60))
    lie = as_terms(host, LEFT, floors=FloorStamps(stamp, stamp, stamp), clock=(1 << 63) - 1)
    receives(host, lie, LEFT)
    ticked(host, ticks=3)
    assert held(host) == {0}


def test_terms_are_sent_to_ring_neighbours_at_first_and_every_64_ticks() -> None:
    host = member(AGED)
    host.clear()
    effects = ticked(host, ticks=TERMS_TICKS + 1)
    receivers = [to for to, each in sent(effects) if type(each) is Terms]
    assert sorted(set(receivers)) == sorted(host.machine.ring_neighbours())
    assert len(receivers) == len(host.machine.ring_neighbours())


def test_terms_are_saved_when_the_charter_changes_and_rarely_afterwards() -> None:
    host = member(COMPACTED)
    assert len(host.all(SaveTerms)) == 2  # with the charter, and at the next tick
    for _ in range(3 * TERMS_TICKS):
        retention_of(host).confirm()
        ticked(host)
    assert len(host.all(SaveTerms)) <= 5


# -- stale members (rules 9 to 11) ---------------------------------------------------------------


def empty_claim(partner: FakeHost[Subscriber]) -> CheckTrie:
    """Return the question of a partner that has nothing."""
    return CheckTrie(LEFT, (RangeSummary.make(ALL),), 7, terms=terms_of(partner))


def fresh(*rows: RecordBatch) -> FakeHost[Subscriber]:
    host = member(COMPACTED, *rows)
    retention_of(host).confirm()
    return host


def stale(*rows: RecordBatch) -> FakeHost[Subscriber]:
    host = member(COMPACTED, *rows)
    assert retention_of(host).is_stale
    return host


def test_stale_member_withholds_old_rows_from_a_fresh_one_and_quarantines_them() -> None:
    host = stale(row(0, OLD), row(1, NOW, b"new"))
    assert row(0, OLD) not in compare(host, fresh())
    assert held(host) == {1}
    assert row(0, OLD) in host.stored
    assert list(retention_of(host).quarantine.hidden) == [row(0, OLD).id]


def test_row_in_quarantine_returns_if_a_fresh_member_has_it() -> None:
    host = stale(row(0, OLD))
    compare(host, fresh())
    assert held(host) == set()
    host.handle(Received(Publications((row(0, OLD),), fresh=True), LEFT))
    assert (held(host), len(host.stored)) == ({0}, 2)


@pytest.mark.parametrize("is_stored", [False, True])
def test_fresh_member_refuses_old_rows_of_a_sender_that_was_stale(is_stored: bool) -> None:
    host = stale(row(0, OLD), row(1)) if is_stored else fresh(row(1))
    compare(host, fresh(row(1)))
    retention_of(host).confirm()
    for message in (Publications((row(0, OLD),)), PublishNew(row(0, OLD))):
        host.handle(Received(message, LEFT))
    assert held(host) == {1}
    host.handle(Received(Publications((row(0, OLD), row(2))), LEFT))
    assert held(host) == {1, 2}


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_messages_with_rows_say_whether_their_sender_is_fresh(is_confirmed: bool) -> None:
    host = fresh(row(0)) if is_confirmed else stale(row(0))
    found = receives(host, empty_claim(stale()), LEFT)
    assert [each.fresh for each in found if isinstance(each, Publications)] == [is_confirmed]


def test_member_that_does_not_know_the_clocks_of_its_neighbours_hides_nothing() -> None:
    host = stale(row(0, OLD))
    retention_of(host).clock.retain(("a", "another"))
    found = receives(host, empty_claim(fresh()), LEFT)
    assert [each.fresh for each in found if isinstance(each, Publications)] == [False]
    assert held(host) == {0}


def test_row_that_a_partner_refuses_is_sent_twice_between_two_audits() -> None:
    host = fresh(row(0))
    message = empty_claim(fresh())

    def times(count: int) -> int:
        found = [each for _ in range(count) for each in receives(host, message, LEFT)]
        return sum(isinstance(each, Publications) for each in found)

    assert times(8) == 2
    ticked(host, ticks=16)
    assert times(8) == 2


def test_scrub_and_index_leave_rows_in_quarantine_outside_the_trie() -> None:
    host = stale(row(0, OLD))
    compare(host, fresh())
    ticked(host, ticks=40)
    assert held(host) == set()
    assert row(0, OLD) in host.stored


def test_row_in_quarantine_above_the_floor_of_tombstones_returns() -> None:
    host = fresh(row(0))
    host.machine.replica.remove(row(0).id, 0)
    retention_of(host).hide(0, row(0))
    ticked(host, ticks=17)
    assert held(host) == {0}


def test_stale_member_teaches_a_stale_one() -> None:
    host = stale(row(0, OLD))
    other = stale()
    assert compare(host, other) == [row(0, OLD)]
    assert held(host) == held(other) == {0}


def equal(host: FakeHost[Subscriber], *, is_stale: bool) -> None:
    """Let a ring neighbour confirm an equal trie, after a tick."""
    ticked(host)
    terms = terms_of(host)
    flagged = terms[:-1] + bytes([terms[-1] & ~STALE | (STALE if is_stale else 0)])
    root = host.machine.replica.index().root()
    receives(host, TrieEqual(LEFT, root, flagged), LEFT)


def test_stale_member_is_fresh_after_a_fresh_one_has_confirmed_an_equal_trie() -> None:
    host = stale(row(0))
    equal(host, is_stale=False)
    assert not retention_of(host).is_stale


def test_stale_member_is_fresh_after_equal_comparisons_with_stale_ones_in_a_row() -> None:
    host = stale(row(0))
    exchange = host.machine.replication.terms
    assert exchange is not None
    needed = 4 * exchange.state().levels + 8
    for _ in range(needed):
        equal(host, is_stale=True)
    assert retention_of(host).is_stale
    exchange.on_different(b"\0" * 8)  # a fresh member begins the row again
    for _ in range(needed):
        equal(host, is_stale=True)
    assert retention_of(host).is_stale
    equal(host, is_stale=True)
    assert not retention_of(host).is_stale


def test_other_terms_confirm_nothing() -> None:
    host = stale(row(0))
    root = host.machine.replica.index().root()
    receives(host, TrieEqual(LEFT, root, b"\0" * 8), LEFT)
    assert retention_of(host).is_stale
    assert host.in_sync == []
