"""Chaos plans: targets, damage, and the nodes and data that a plan spares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import to_builtins

from skipring.admin import chaos_plans
from skipring.admin.chaos_plans import Damages, adversarial
from skipring.core.messages import CARRIERS
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.summaries import EMPTY_ROOT
from skipring.errors import InputError
from skipring.wire.chaos import CorruptTrie, Crash, Forge, Isolate, Overwrite, OverwriteDatabase
from skipring.wire.codec import decode, encode
from skipring.wire.framing import FrameReader
from skipring.wire.rpc import NodeStatus
from skipring.world.adversaries import ADVERSARIES
from tests.support.machines import label, peer

TOPIC = "news"
LIVE = tuple("abcdefgh")


def statuses(*names: NodeId, count: int = 40, root: bytes = bytes(16)) -> dict[NodeId, NodeStatus]:
    """Return the statuses of members with stored publications."""
    own = (label("01"), peer("0", "a"), None, None, ((label("1"), "b"),), {}, {})
    return {name: NodeStatus(0, *own, True, count, count, root) for name in names}


def texts_in(plain: object) -> Iterator[str]:
    match plain:
        case str():
            yield plain
        case dict():
            yield from plain
        case list() | tuple():
            for each in plain:
                yield from texts_in(each)


def named_in(damages: Damages) -> set[str]:
    """Return every node that a plan names, including those in forged messages."""
    messages: list[object] = [damage for each in damages.values() for damage in each]
    for damage in [each for each in messages if isinstance(each, Forge)]:
        messages += [decode(frame).message for frame in FrameReader().feed(damage.frames)]
    texts = {
        text for each in messages for text in texts_in(to_builtins(each, builtin_types=(bytes,)))
    }
    return {text for text in texts if text.strip("01") and text not in {"LIN", "CYC", "busy"}}


# -- adversaries -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("code", ADVERSARIES)
def test_every_adversary_has_an_encodable_plan_that_names_only_live_nodes_and_ghosts(
    code: str, count: int
) -> None:
    live = LIVE[:count]
    damages = adversarial(code, TOPIC, statuses(*live), seed=3)
    assert set(damages) == {SUPERVISOR, *live}
    for each in damages.values():
        for damage in each:
            encode(TOPIC, damage)
    strangers = named_in(damages) - {SUPERVISOR, *live}
    assert all(name.startswith("ghost-") for name in strangers), strangers


@pytest.mark.parametrize("code", ["A17", "A18", "A36"])
def test_crashed_nodes_of_a_world_become_ghosts(code: str) -> None:
    damages = adversarial(code, TOPIC, statuses(*LIVE), seed=0)
    assert any(name.startswith("ghost-") for name in named_in(damages))


def test_plan_depends_on_the_seed() -> None:
    members = statuses(*LIVE)
    assert adversarial("A15", TOPIC, members, 1) == adversarial("A15", TOPIC, members, 1)
    assert adversarial("A15", TOPIC, members, 1) != adversarial("A15", TOPIC, members, 2)


def test_unknown_adversary_is_refused_and_known_ones_are_listed() -> None:
    with pytest.raises(
        InputError, match=r"unknown adversary A99; the adversaries are A00, A01.*A15.*A47"
    ):
        adversarial("A99", TOPIC, statuses("a"), 0)


def test_plan_forges_messages_without_publications() -> None:
    damages = adversarial("A13", TOPIC, statuses(*LIVE), seed=0)
    frames = [d.frames for each in damages.values() for d in each if isinstance(d, Forge)]
    kinds = {type(decode(frame).message) for data in frames for frame in FrameReader().feed(data)}
    assert len(kinds) > 5
    assert not kinds & CARRIERS


def test_adversary_with_scattered_publications_drops_stored_ones() -> None:
    damages = adversarial("A19", TOPIC, statuses(*LIVE), seed=0)
    spoils = [d for each in damages.values() for d in each if isinstance(d, CorruptTrie)]
    assert [spoil.publications for spoil in spoils] == [0] + 7 * [20]
    assert {spoil.hashes for spoil in spoils} == {0}
    damages = adversarial("A47", TOPIC, statuses(*LIVE), seed=0)
    assert all(d.hashes for each in damages.values() for d in each if isinstance(d, CorruptTrie))


# -- parts of a topic ------------------------------------------------------------------------


def test_database_plan_writes_a_wrong_or_an_empty_database() -> None:
    (wrong,) = chaos_plans.wrong_database(LIVE, seed=1)[SUPERVISOR]
    assert isinstance(wrong, OverwriteDatabase)
    assert wrong.database
    assert chaos_plans.no_database() == {SUPERVISOR: [OverwriteDatabase(0, (), 0, ())]}


def test_label_plan_changes_labels_only() -> None:
    members = statuses(*LIVE)
    damages = chaos_plans.wrong_labels(members, seed=1)
    assert set(damages) == set(LIVE)
    labels = set()
    for name, (damage,) in damages.items():
        assert isinstance(damage, Overwrite)
        labels.add(damage.label)
        assert (damage.left, damage.shortcuts) == (members[name].left, members[name].shortcuts)
    assert len(labels) > 1


def test_plan_drops_no_publication_that_the_keeper_may_lack() -> None:
    members = statuses("a", "b") | statuses("c", root=EMPTY_ROOT)
    damages = chaos_plans.spoilt_tries(members, 0.5, seed=0)
    lost = {name: damage.publications for name, (damage,) in damages.items()}  # type: ignore[union-attr]
    assert lost == {"a": 0, "b": 20, "c": 0}


# -- partitions and kills --------------------------------------------------------------------


def test_partition_isolates_each_side_from_the_others() -> None:
    assert chaos_plans.partition([["a", "b"], ["c"]], 9) == {
        "a": [Isolate(0, ("c",), 9)],
        "b": [Isolate(0, ("c",), 9)],
        "c": [Isolate(0, ("a", "b"), 9)],
    }


def test_supervisor_on_one_side_is_unreachable_for_the_other() -> None:
    assert chaos_plans.partition([["a", SUPERVISOR], ["b"]], 9) == {
        "a": [Isolate(0, ("b",), 9)],
        "b": [Isolate(0, ("a", SUPERVISOR), 9)],
    }


def test_random_groups_have_similar_sizes() -> None:
    parts = chaos_plans.parts_of(LIVE[:7], 3, seed=0)
    assert sorted(map(len, parts)) == [2, 2, 3]
    assert sorted(name for part in parts for name in part) == list(LIVE[:7])


def test_every_damage_has_a_description() -> None:
    plans = (
        adversarial("A15", TOPIC, statuses("a", "b"), 0),
        adversarial("A47", TOPIC, statuses("a", "b"), 0),
        chaos_plans.partition([["a"], ["b"]], 9),
    )
    told = {chaos_plans.words(d) for plan in plans for each in plan.values() for d in each}
    assert "cut off from b for 9 ticks" in told
    assert "up to 3 digests wrong, 20 publications lost" in told
    assert any(text.startswith("variables overwritten, label ") for text in told)
    assert any(text.startswith("database overwritten with ") for text in told)
    assert any(text.endswith(" bytes of forged messages") for text in told)
    assert chaos_plans.words(Isolate(0, (), 0)) == "healed"
    assert chaos_plans.words(Crash(0)) == "killed"
