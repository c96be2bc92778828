"""Shrinking: reduction of failing worlds that still fail."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeAlias
from zlib import crc32

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from skipring.cli import main
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckAndPublish,
    CheckTrie,
    GetConfiguration,
    IHave,
    Introduce,
    PublishNew,
    TrieEqual,
    Want,
)
from skipring.core.peers import SUPERVISOR, EdgeKind, Peer
from skipring.core.prefix import ALL
from skipring.core.state import LivenessState, SubscriberState, SupervisorState
from skipring.core.summaries import RangeSummary
from skipring.sim.scenario import Scenario, make_scenario
from skipring.sim.shrink import fails_to_converge, shrink
from skipring.world.adversaries import ADVERSARIES, legitimate_world
from skipring.world.format import parse_world, render_world
from skipring.world.snapshot import Parcel, Snapshot
from tests.support.batches import batch
from tests.support.strategies import snapshots

Run: TypeAlias = Callable[..., tuple[int, str, str]]

PAPER = make_scenario({"n": 32, "adversary": "A36", "mode": "paper", "max_rounds": 60})


def arbitrary_world(n: int = 12) -> Snapshot:
    """Return a world in a random state with more memory than a subscriber needs."""
    world = ADVERSARIES["A15"].build(n, Random(0))
    node = min(world.subscribers)
    crowded = replace(
        world.subscribers[node], silence={node: LivenessState(1, 8, True)}, digests={node: 7}
    )
    return replace(
        world,
        supervisor=replace(world.supervisor, next=5, queue=(node,)),
        subscribers={**world.subscribers, node: crowded},
        crashed=("x1", "x2", "x3"),
    )


# --- remainder -------------------------------------------------------------------------


def test_relevant_message_stays_with_the_nodes_it_names() -> None:
    node, other, *_ = sorted(arbitrary_world().subscribers)
    poison = Parcel(
        node, Introduce(Peer(Label.parse("011"), other), EdgeKind.LINE, first_hand=False)
    )
    start = arbitrary_world()
    start = replace(start, channels=(*start.channels[:9], poison, *start.channels[9:]))

    small = shrink(start, lambda world: poison in world.channels, attempts_max=10_000)

    assert small == Snapshot(
        subscribers={node: SubscriberState(), other: SubscriberState()}, channels=(poison,)
    )


def test_relevant_reference_stays() -> None:
    start = legitimate_world(16, Random(0))
    node, state = next((n, s) for n, s in start.subscribers.items() if s.left is not None)

    def fails(world: Snapshot) -> bool:
        return node in world.subscribers and world.subscribers[node].left == state.left

    small = shrink(start, fails, attempts_max=10_000)

    assert state.left is not None
    assert small == Snapshot(
        subscribers={
            name: SubscriberState(left=state.left if name == node else None)
            for name in start.subscribers
            if name in (node, state.left.node)
        }
    )


def test_labels_that_must_stay_are_shortened() -> None:
    def fails(world: Snapshot) -> bool:
        labels = [state.label for state in world.subscribers.values()]
        return any(label is not None and label.length >= 5 for label in labels)

    long = Label.parse("01" * 20)
    small = shrink(
        Snapshot(subscribers={"a": SubscriberState(label=long)}), fails, attempts_max=100
    )

    # A label ends in 1, so the next shorter one after six bits has four.
    assert small.subscribers["a"].label == Label.parse("010101")


def test_database_entries_dead_nodes_and_the_cursor_are_removed_separately() -> None:
    start = Snapshot(
        supervisor=SupervisorState(
            database=(("0", "a"), ("1", "x"), ("01", None), ("00", "a")), next=9, queue=("a", "x")
        ),
        subscribers={"a": SubscriberState()},
        crashed=("x", "y"),
    )

    small = shrink(start, lambda world: ("1", "x") in world.supervisor.database, attempts_max=100)

    database = (("1", "x"),)
    assert small == Snapshot(
        supervisor=SupervisorState(database=database), subscribers={}, crashed=("x",)
    )


def test_message_of_a_removed_sender_stays_without_sender() -> None:
    parcel = Parcel(SUPERVISOR, GetConfiguration("a"), sender="b")
    start = Snapshot(
        subscribers={"a": SubscriberState(), "b": SubscriberState()}, channels=(parcel,)
    )

    small = shrink(start, lambda world: len(world.channels) > 0, attempts_max=100)

    assert small.channels == (replace(parcel, sender=None),)


def test_relevant_publication_and_digest_stay() -> None:
    start = ADVERSARIES["A47"].build(6, Random(0))
    node, state = max(start.subscribers.items(), key=lambda item: len(item[1].hashes))
    row, hashed = state.publications[3], max(state.hashes)

    def fails(world: Snapshot) -> bool:
        left = world.subscribers.get(node, SubscriberState())
        return row in left.publications and hashed in left.hashes

    small = shrink(start, fails, attempts_max=10_000)

    left = SubscriberState(publications=(row,), hashes={hashed: state.hashes[hashed]})
    assert small == Snapshot(subscribers={node: left})


def test_messages_of_a_removed_node_are_removed() -> None:
    claims = (RangeSummary.make(ALL),)
    messages = [
        *(CheckTrie("b", claims), CheckAndPublish("b", claims), TrieEqual("b", b"0" * 16)),
        *(IHave("b", b"", b""), Want("b", b"", b"")),
    ]
    nodes = {"a": SubscriberState(), "b": SubscriberState()}
    kept = Parcel("a", PublishNew(batch(publisher="b")))  # any node may have published
    start = Snapshot(subscribers=nodes, channels=(*(Parcel("a", m) for m in messages), kept))

    small = shrink(start, lambda world: kept in world.channels, attempts_max=100)

    assert small == Snapshot(subscribers={"a": SubscriberState()}, channels=(kept,))


# --- procedure -------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(start=snapshots(publications_max=2))
def test_every_candidate_is_a_valid_world_file(start: Snapshot) -> None:
    def fails(candidate: Snapshot) -> bool:
        text = render_world(candidate)
        parse_world(text)  # raises WorldFormatError for an unknown node
        return crc32(text.encode()) % 2 == 0

    shrink(start, fails, attempts_max=200)


def test_shrinking_is_deterministic_in_few_distinct_attempts() -> None:
    tried: list[str] = []

    def fails(candidate: Snapshot) -> bool:
        tried.append(render_world(candidate))
        return sum(1 for _ in candidate.explicit_edges()) >= 2

    first = shrink(arbitrary_world(), fails, attempts_max=10_000)
    attempts = list(tried)
    assert shrink(arbitrary_world(), fails, attempts_max=10_000) == first
    assert tried == attempts * 2
    assert len(set(attempts)) == len(attempts) < 200


def test_minimal_world_is_returned_unchanged() -> None:
    start = arbitrary_world()
    assert shrink(start, lambda _: False, attempts_max=10_000) is start


def test_attempts_are_bounded() -> None:
    attempts = 0

    def fails(_: Snapshot) -> bool:
        nonlocal attempts
        attempts += 1
        return False

    shrink(arbitrary_world(), fails, attempts_max=7)
    assert attempts == 7


# --- a real failure --------------------------------------------------------------------


def size(world: Snapshot) -> tuple[int, int, int]:
    edges = sum(1 for _ in world.explicit_edges())
    return len(world.subscribers), len(world.channels), edges


def failing_world(scenario: Scenario) -> Snapshot:
    start = scenario.start()
    assert fails_to_converge(scenario)(start)
    return start


@pytest.mark.heavy
def test_dead_neighbours_that_the_paper_cannot_drop_shrink_to_a_few() -> None:
    start, fails = failing_world(PAPER), fails_to_converge(PAPER)

    small = shrink(start, fails, attempts_max=60)

    assert fails(small)
    assert fails(parse_world(render_world(small)))
    (subscribers, _, references), before = size(small), size(start)
    assert subscribers < before[0] / 2
    assert references < before[2] / 4


# --- the command -----------------------------------------------------------------------

OPTIONS = ("--mode", "paper", "--max-rounds", "60", "--attempts", "20")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in an empty directory; return exit status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run_words(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["skipring", *words])
        with pytest.raises(SystemExit) as exited:
            main()
        assert isinstance(exited.value.code, int)
        return exited.value.code, *capsys.readouterr()

    return run_words


@pytest.mark.heavy
def test_command_writes_a_smaller_world_and_the_replay_command(run: Run) -> None:
    start = failing_world(PAPER)
    Path("large.json").write_text(render_world(start))

    status, printed, said = run("shrink", "large.json", "--out", "small.json", *OPTIONS)

    assert (status, said) == (0, "")
    assert len(printed.splitlines()) == 1
    counts, _, command = printed.partition("; ")
    before, after = size(start), size(parse_world(Path("small.json").read_text()))
    names = ("subscribers", "messages", "references")
    assert counts == ", ".join(
        f"{name} {was} -> {now}" for name, was, now in zip(names, before, after, strict=True)
    )
    assert sum(after) < sum(before)
    program, *words = shlex.split(command)
    assert program == "skipring"
    assert run(*words)[0] == 3


def test_command_reports_a_world_that_does_not_fail(run: Run) -> None:
    Path("good.json").write_text(render_world(legitimate_world(4, Random(0))))

    answer = run("shrink", "good.json", "--out", "small.json", "--without", "R9, R15")

    assert answer == (1, "", "good.json does not fail under these options\n")
    assert not Path("small.json").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["absent.json", "--out", "small.json"], "cannot read absent.json"),
        (["bad.json", "--out", "small.json"], "bad.json: "),
        (["good.json", "--out", "small.json", "--mode", "slow"], "mode: "),
        (["good.json", "--out", "small.json", "--without", "R99"], "'R99'"),
        (["good.json", "--out", "nowhere/small.json"], "no directory nowhere"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(words: list[str], complaint: str, run: Run) -> None:
    Path("good.json").write_text(render_world(legitimate_world(2, Random(0))))
    Path("bad.json").write_text("{}")

    status, printed, said = run("shrink", *words)

    assert (status, printed) == (2, "")
    assert complaint in said.splitlines()[-1]
    assert not Path("small.json").exists()
