"""Routine messages: handled together as each alone, also when they are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Effect
from skipring.core.events import Overwritten, Received, RoutineReceived, Tick
from skipring.core.messages import (
    CheckLabel,
    ConfigurationAck,
    Digest,
    IntroduceShortcut,
    RoutineMessage,
    SetConfiguration,
)
from skipring.core.neighbour_liveness import NeighbourLiveness
from skipring.core.peers import SUPERVISOR, EdgeKind
from skipring.core.ring_digest import RingDigest
from skipring.core.ring_messages import SENDERS_MAX, RingMessages, RingTick
from skipring.core.shortcuts import Shortcuts
from skipring.core.state import SubscriberState
from tests.support.fake_host import FakeHost, sent
from tests.support.machines import (
    ME,
    label,
    peer,
    ring_at,
    subscriber,
    supervisor,
    unhurried,
    written,
)
from tests.support.strategies import messages, subscriber_states

NODES = (ME, "a", "b", "c", "supervisor")
LIVE = ProtocolConfig.live()
# In the middle of a ring of eight, with both neighbours and a shortcut.
STATE = SubscriberState(
    label=label("01"),
    left=peer("001", "a"),
    right=peer("011", "z"),
    shortcuts={label("0"): "r", label("1"): "s"},
)
FROM_A: tuple[RoutineMessage, ...] = (
    CheckLabel(peer("001", "a"), label("01"), EdgeKind.LINE),
    Digest("a", 7),
)


def routine_messages() -> st.SearchStrategy[tuple[RoutineMessage, ...]]:
    one = messages(NODES, (CheckLabel, IntroduceShortcut, Digest))
    return st.lists(one, min_size=1, max_size=4).map(tuple)  # type: ignore[arg-type]


@unhurried
@given(st.data())
def test_messages_handled_together_act_as_each_alone(data: st.DataObject) -> None:
    """From any state, for any messages, also if they arrive again and the state has changed."""
    states = subscriber_states(NODES)
    together, alone = (subscriber(STATE, config=LIVE) for _ in range(2))
    events = [
        RoutineReceived(data.draw(routine_messages()), data.draw(st.sampled_from(NODES)))
        for _ in range(2)
    ]
    for _ in range(6):
        step = data.draw(st.sampled_from(("messages", "messages", "tick", "state")))
        if step == "messages":
            event = data.draw(st.sampled_from(events))
            effects = together.handle(event)
            each = [alone.handle(Received(message, event.sender)) for message in event.messages]
            assert effects == [effect for some in each for effect in some]
        elif step == "tick":
            assert sent(together.handle(Tick())) == sent(alone.handle(Tick()))
        else:
            state = data.draw(states)
            together.handle(Overwritten(state))
            alone.handle(Overwritten(state))
        assert together.machine.state() == alone.machine.state()
        assert together.machine.memory() == alone.machine.memory()


def at_rest() -> FakeHost:
    """Return a member that knows the messages of its left neighbour."""
    host = subscriber(STATE, config=LIVE)
    for _ in range(2):
        assert host.handle(RoutineReceived(FROM_A, "a")) == []
    return host


def test_known_messages_show_that_the_sender_lives() -> None:
    host = at_rest()
    for _ in range(20):
        host.tick()
        host.handle(RoutineReceived(FROM_A, "a"))
    assert host.machine.unheard["a"] == -1
    assert host.machine.silence["a"].ticks == 0
    assert host.machine.unheard["z"] > 0
    assert host.machine.digests == {"a": 7}


def test_known_messages_are_handled_again_at_another_place() -> None:
    host = at_rest()
    host.handle(Overwritten(SubscriberState(label=label("1"))))
    (effect,) = host.handle(RoutineReceived(FROM_A, "a"))
    assert sent([effect])[0][0] == "a"  # its belief about the label is wrong now


def test_messages_of_many_senders_are_bounded() -> None:
    ring = ring_at("01", left=peer("001", "a"), right=peer("011", "z"))
    part = RingMessages(ring, Shortcuts(ring), NeighbourLiveness(LIVE, {}), RingDigest(LIVE))
    for number in range(SENDERS_MAX + 10):
        event = RoutineReceived((Digest(f"n{number}", 1),), f"n{number}")
        assert written(lambda out: part.on_routine(event, out)) == []  # noqa: B023
    assert len(part.known or ()) == SENDERS_MAX


def test_wrong_known_messages_are_corrected_within_16_ticks() -> None:
    """A node wrongly believes that a message changes nothing."""
    host = subscriber(STATE, config=LIVE)
    nearer: tuple[RoutineMessage, ...] = (
        CheckLabel(peer("0011", "b"), label("01"), EdgeKind.LINE),
    )
    messages = host.machine.ring_messages
    messages.known, messages.known_at = {"b": nearer}, messages.place()
    host.handle(RoutineReceived(nearer, "b"))
    assert host.machine.left == peer("001", "a")
    host.tick(16)
    host.handle(RoutineReceived(nearer, "b"))
    assert host.machine.left == peer("0011", "b")


def test_known_tick_is_sent_again_by_value() -> None:
    """A member at rest sends what a member sends that remembers nothing."""
    host, fresh = at_rest(), subscriber(STATE, config=LIVE)
    for _ in range(20):
        ticked = host.tick()
        assert ticked == fresh.tick()
        host.handle(RoutineReceived(FROM_A, "a"))
        for message in FROM_A:
            fresh.handle(Received(message, "a"))
    assert host.machine.ring_messages.is_at_rest
    assert not fresh.machine.ring_messages.is_at_rest


def test_wrong_known_tick_is_corrected_within_16_ticks() -> None:
    """A node wrongly believes that a tick at its place sends nothing, and is sure of its place."""
    host = at_rest()
    host.tick(2)
    messages = host.machine.ring_messages
    messages.known_tick = RingTick((), 2, [], [], None)
    messages.is_place_sure = True
    assert not [sent for sent in host.tick() if isinstance(sent[1], CheckLabel)]
    host.tick(16)
    checks = [to for to, message in host.tick() if isinstance(message, CheckLabel)]
    assert checks == ["a", "z"]


@pytest.mark.parametrize("wants", [True, False])
def test_node_without_a_label_answers_each_message(wants: bool) -> None:
    host = subscriber(SubscriberState(member=wants), config=LIVE)
    together = host.handle(RoutineReceived(FROM_A, "a"))
    assert together == host.handle(RoutineReceived(FROM_A, "a"))
    assert "a" in [to for to, _ in sent(together)]


def test_supervisor_asks_the_sender_of_routine_messages_to_forget_it() -> None:
    host = supervisor("a")
    assert [to for to, _ in sent(host.handle(RoutineReceived(FROM_A, "a")))] == ["a"] * len(FROM_A)


# -- configurations and messages without an event ----------------------------------------------

CONFIGURATION = SetConfiguration(peer("001", "a"), label("01"), peer("011", "z"))


def configure(host: FakeHost, message: SetConfiguration = CONFIGURATION) -> list[Effect]:
    return host.handle(Received(message, SUPERVISOR))


@unhurried
@given(st.data())
def test_messages_without_an_event_act_as_with_one(data: st.DataObject) -> None:
    """From any state: a host may pass known messages to ``repeat``."""
    repeating, handling = (subscriber(STATE, config=LIVE) for _ in range(2))
    events = [
        RoutineReceived(data.draw(routine_messages()), data.draw(st.sampled_from(NODES)))
        for _ in range(2)
    ]
    for _ in range(8):
        step = data.draw(st.sampled_from(("messages", "messages", "messages", "tick", "state")))
        if step == "messages":
            event = data.draw(st.sampled_from(events))
            effects = handling.handle(event)
            if repeating.machine.repeat(event):
                assert effects == []
            else:
                assert repeating.handle(event) == effects
        elif step == "tick":
            assert sent(repeating.handle(Tick())) == sent(handling.handle(Tick()))
        else:
            state = data.draw(subscriber_states(NODES))
            repeating.handle(Overwritten(state))
            handling.handle(Overwritten(state))
        assert repeating.machine.state() == handling.machine.state()
        assert repeating.machine.memory() == handling.machine.memory()


def test_unknown_messages_need_an_event() -> None:
    host = at_rest()
    assert host.machine.repeat(RoutineReceived(FROM_A, "a"))
    assert not host.machine.repeat(RoutineReceived(FROM_A, "z"))
    assert not host.machine.repeat(RoutineReceived(FROM_A[:1], "a"))
    host.handle(Overwritten(SubscriberState(label=label("1"))))
    assert not host.machine.repeat(RoutineReceived(FROM_A, "a"))


@unhurried
@given(st.data())
def test_known_configurations_act_as_new_ones(data: st.DataObject) -> None:
    """A member that remembers configurations does what a member does that remembers nothing."""
    remembering, fresh = (subscriber(STATE, config=LIVE) for _ in range(2))
    configurations = [
        CONFIGURATION,
        data.draw(messages(NODES, (SetConfiguration,))),
    ]
    event = RoutineReceived(data.draw(routine_messages()), data.draw(st.sampled_from(NODES)))
    for _ in range(8):
        step = data.draw(st.sampled_from(("configuration", "configuration", "messages", "state")))
        if step == "configuration":
            chosen = Received(data.draw(st.sampled_from(configurations)), SUPERVISOR)
            fresh.machine.ring_messages.drop_derived()
            assert remembering.handle(chosen) == fresh.handle(chosen)
        elif step == "messages":
            each = [fresh.handle(Received(message, event.sender)) for message in event.messages]
            assert remembering.handle(event) == [effect for some in each for effect in some]
        else:
            state = data.draw(subscriber_states(NODES))
            remembering.handle(Overwritten(state))
            fresh.handle(Overwritten(state))
        assert remembering.machine.state() == fresh.machine.state()
        assert remembering.machine.memory() == fresh.machine.memory()


def test_known_configuration_is_acknowledged_and_changes_nothing() -> None:
    host = at_rest()
    assert sent(configure(host)) == sent(configure(host)) == [(SUPERVISOR, ConfigurationAck())]
    assert host.machine.knows(Received(CONFIGURATION, SUPERVISOR))
    assert host.machine.ring_messages.is_place_sure  # nothing is derived again
    other = SetConfiguration(peer("001", "a"), label("01"), peer("011", "b"))
    assert not host.machine.knows(Received(other, SUPERVISOR))
    configure(host, other)
    assert host.machine.right == peer("011", "b")
    configure(host)
    assert host.machine.right == peer("011", "z")


def test_wrong_known_configuration_is_corrected_within_16_ticks() -> None:
    host = at_rest()
    other = SetConfiguration(peer("001", "a"), label("01"), peer("011", "b"))
    host.machine.ring_messages.known_configuration = other
    configure(host, other)
    assert host.machine.right == peer("011", "z")
    host.tick(16)
    configure(host, other)
    assert host.machine.right == peer("011", "b")


def test_known_configuration_confirms_neighbours() -> None:
    """It doubles the timeout of a silent neighbour, as the same configuration did before."""
    host = at_rest()
    configure(host)
    thresholds = []
    for _ in range(40):
        host.tick()
        configure(host)
        thresholds.append(host.machine.silence["a"].threshold)
    assert thresholds[0] < thresholds[-1]
