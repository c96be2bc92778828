"""States as values: a machine returns the state that it has loaded."""

from hypothesis import given
from msgspec.structs import replace

from skipring.core.events import Overwritten
from skipring.core.labels import Label
from skipring.core.messages import Digest, RemoveConnections
from skipring.core.peers import SUPERVISOR
from skipring.core.prefix import ALL
from skipring.core.state import SubscriberState, SupervisorState
from tests.support.machines import ME, loaded_supervisor, subscriber, supervisor, unhurried
from tests.support.strategies import subscriber_states, supervisor_states

NODES = ("a", "b", ME, "z", SUPERVISOR)


@given(subscriber_states(NODES, publications_max=2))
@unhurried
def test_subscriber_loads_any_state_unchanged(state: SubscriberState) -> None:
    host = subscriber(state)
    kept = {prefix: digest for prefix, digest in state.hashes.items() if prefix == ALL}
    assert host.machine.state() == replace(state, hashes=kept)  # a small trie keeps the root only
    shown = (
        host.machine.member,
        host.machine.label,
        host.machine.left,
        host.machine.right,
        host.machine.ring,
    )
    assert shown == (state.member, state.label, state.left, state.right, state.ring)
    assert dict(host.machine.shortcuts) == state.shortcuts
    assert host.machine.batches() == state.publications
    assert sorted(host.machine.trie().keys()) == sorted({held.id for held in state.publications})


@given(subscriber_states(NODES), subscriber_states(NODES))
@unhurried
def test_load_replaces_all_of_an_earlier_state(
    one: SubscriberState, other: SubscriberState
) -> None:
    host = subscriber(one)
    host.handle(Overwritten(other))
    assert host.machine.state() == other


@given(supervisor_states(NODES))
@unhurried
def test_supervisor_loads_any_state_unchanged(state: SupervisorState) -> None:
    assert loaded_supervisor(state).machine.state() == state


def test_state_that_was_read_does_not_change_with_the_machine() -> None:
    host = subscriber(SubscriberState(label=Label(0), shortcuts={Label.nth(1): "a"}))
    before = host.machine.state()
    host.receive(RemoveConnections("a"))
    host.receive(Digest("a", 1))
    assert before == SubscriberState(label=Label(0), shortcuts={Label.nth(1): "a"})


def test_machine_does_not_change_the_state_it_has_loaded() -> None:
    state = SubscriberState(label=Label(0), shortcuts={Label.nth(1): "a"}, digests={"a": 1})
    host = subscriber(state)
    host.receive(RemoveConnections("a"))
    host.receive(Digest("a", 2))
    assert state.shortcuts == {Label.nth(1): "a"}
    assert state.digests == {"a": 1}


def test_new_subscriber_has_an_empty_state() -> None:
    assert subscriber(SubscriberState()).machine.state() == SubscriberState()


def test_new_supervisor_has_an_empty_roster() -> None:
    assert supervisor().machine.state() == SupervisorState()
