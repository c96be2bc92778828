"""Addresses of nodes, and the supervisor of a topic."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from skipring.errors import InputError
from skipring.net import addresses
from skipring.net.addresses import (
    AddressBook,
    parse_address,
    parse_supervisors,
    split_address,
    supervisor_of,
)

TOPICS = [f"topic/{number}" for number in range(3000)]
SUPERVISORS = [f"10.0.0.{number}:7000" for number in range(1, 7)]


# -- address book ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_greeted_first", [True, False])
def test_greeting_overrides_a_hint_in_either_order(is_greeted_first: bool) -> None:
    book = AddressBook()
    if is_greeted_first:
        book.greet("a", "own:1")
    book.learn({"a": "heard:1"})
    if not is_greeted_first:
        book.greet("a", "own:1")
    assert book.find("a") == "own:1"


def test_doubted_address_is_replaced_by_a_hint_until_the_next_greeting() -> None:
    book = AddressBook()
    book.greet("a", "own:1")
    book.learn({"a": "heard:1"})
    book.doubt("a", "own:1")
    assert book.find("a") == "heard:1"
    book.greet("a", "own:2")
    assert book.find("a") == "own:2"


def test_doubted_address_without_other_claims_is_removed() -> None:
    book = AddressBook()
    book.greet("a", "own:1")
    book.doubt("a", "own:1")
    book.doubt("never heard of", "own:1")
    assert book.find("a") is None


def test_proven_address_precedes_every_claim() -> None:
    book = AddressBook()
    book.learn({"a": "heard:1"}, "m")
    book.learn({"a": "told:1"})
    book.prove("a", "proven:1")
    assert book.find("a") == "proven:1"
    assert book.claimant("a", "proven:1") is None
    book.doubt("a", "proven:1")
    assert book.find("a") == "told:1"


def test_claim_of_a_node_about_itself_replaces_a_proven_address() -> None:
    book = AddressBook()
    book.prove("a", "proven:1")
    book.greet("a", "own:2")
    assert book.find("a") == "own:2"
    assert not book.is_proven("a", "proven:1")
    assert book.claimant("a", "own:2") == "a"


def test_claim_of_a_member_does_not_replace_the_claim_of_a_supervisor() -> None:
    book = AddressBook()
    book.learn({"a": "told:1"})
    book.learn({"a": "heard:1"}, "m")
    assert book.find("a") == "told:1"
    assert book.claimant("a", "told:1") is None
    book.doubt("a", "told:1")
    assert (book.find("a"), book.claimant("a", "heard:1")) == ("heard:1", "m")
    book.doubt("a", "heard:1")
    assert book.find("a") == "told:1"


def test_hints_are_given_for_known_nodes_only() -> None:
    book = AddressBook()
    book.greet("a", "own:1")
    book.learn({"b": "heard:1"})
    book.greet("client", "")
    assert book.hints(["a", "b", "client", "c"]) == {"a": "own:1", "b": "heard:1"}


@pytest.mark.parametrize("is_greeting", [True, False])
def test_address_book_is_bounded_and_forgets_the_oldest_first(
    monkeypatch: pytest.MonkeyPatch, is_greeting: bool
) -> None:
    monkeypatch.setattr(addresses, "ADDRESSES_MAX", 3)
    book = AddressBook()

    def enter(name: str) -> None:
        if is_greeting:
            book.greet(name, "h:1")
        else:
            book.learn({name: "h:1"})

    for name in ["a", "b", "c", "a", "d"]:  # a greets again and is newer than b
        enter(name)
    assert set(book.hints("abcd")) == {"a", "c", "d"}
    for number in range(100):
        enter(f"n{number}")
    assert set(book.hints(f"n{number}" for number in range(100))) == {"n97", "n98", "n99"}


# -- rendezvous hashing ----------------------------------------------------------------------


def test_supervisor_of_a_topic_does_not_depend_on_the_order_of_the_list() -> None:
    rng = Random(1)
    for topic in TOPICS[:300]:
        shuffled = rng.sample(SUPERVISORS, len(SUPERVISORS))
        owner = supervisor_of(topic, SUPERVISORS)
        assert owner in SUPERVISORS
        assert supervisor_of(topic, shuffled) == owner
        assert supervisor_of(topic, shuffled + shuffled[:2]) == owner


def test_topics_are_spread_evenly() -> None:
    counts = Counter(supervisor_of(topic, SUPERVISORS) for topic in TOPICS)
    fair = len(TOPICS) / len(SUPERVISORS)
    assert set(counts) == set(SUPERVISORS)
    assert all(abs(count - fair) < fair / 5 for count in counts.values()), counts


@pytest.mark.parametrize("gone", SUPERVISORS)
def test_only_topics_of_an_added_or_removed_supervisor_move(gone: str) -> None:
    rest = [address for address in SUPERVISORS if address != gone]
    heirs: Counter[str] = Counter()
    for topic in TOPICS:
        with_it, without_it = supervisor_of(topic, SUPERVISORS), supervisor_of(topic, rest)
        if with_it == gone:
            heirs[without_it] += 1
        else:
            assert without_it == with_it
    assert set(heirs) == set(rest), "what it had goes to all others, not to one"


def test_choice_of_supervisor_is_equal_in_every_process_and_release() -> None:
    chosen = [supervisor_of(topic, SUPERVISORS) for topic in ["news", "prices", "ünï/cödé"]]
    assert chosen == ["10.0.0.5:7000", "10.0.0.5:7000", "10.0.0.4:7000"]


# -- addresses as users write them -------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("7400", "127.0.0.1:7400"),
        (":7400", "127.0.0.1:7400"),
        ("localhost:7400", "localhost:7400"),
        ("[::1]:7400", "[::1]:7400"),
        ("skipring://127.0.0.1:7400", "127.0.0.1:7400"),
        ("skipring://:7400/", "127.0.0.1:7400"),
        (" 127.0.0.1:07400 ", "127.0.0.1:7400"),
    ],
)
def test_every_form_of_an_address_is_normalized(text: str, address: str) -> None:
    assert parse_address(text, "listen") == address
    assert parse_supervisors(text, is_secured=False) == (address,)


@pytest.mark.parametrize(
    "text", ["", ":", "here", "127.0.0.1:", "127.0.0.1:65536", "::1:7400", "a b:1", "http://x:1"]
)
def test_invalid_address_names_the_parameter(text: str) -> None:
    with pytest.raises(InputError, match=r"^listen: expected HOST:PORT") as caught:
        parse_address(text, "listen")
    assert caught.value.parameter == "listen"


@pytest.mark.parametrize("text", ["", ",", "skipring://", "127.0.0.1:0", "127.0.0.1:1,x"])
def test_list_without_usable_supervisor_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^supervisor: "):
        parse_supervisors(text, is_secured=False)


def test_supervisor_list_is_split_without_duplicates() -> None:
    listed = "skipring://127.0.0.1:1, :2,127.0.0.1:1"
    assert parse_supervisors(listed, is_secured=False) == ("127.0.0.1:1", "127.0.0.1:2")
    assert parse_supervisors(["1", "2"], is_secured=False) == ("127.0.0.1:1", "127.0.0.1:2")


def test_host_beyond_loopback_needs_certificates() -> None:
    with pytest.raises(InputError, match="no certificates"):
        split_address("10.0.0.1:7400", "listen", is_secured=False)
    assert split_address("10.0.0.1:7400", "listen", is_secured=True) == ("10.0.0.1", 7400)
