"""The exhaustive check of every state of two subscribers."""

from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest
from msgspec.structs import replace

from skipring.core.config import Mode, ProtocolConfig, Rule, Rules
from skipring.core.effects import Outbox, Send
from skipring.core.events import Overwritten, Received, Tick
from skipring.core.messages import Message, RemoveConnections
from skipring.core.peers import SUPERVISOR, NodeId, Peer
from skipring.core.ring import Ring
from skipring.core.subscriber import Subscriber
from skipring.core.supervisor import Supervisor
from skipring.world.adversaries import legitimate_world
from skipring.world.format import parse_world, render_world
from skipring.world.legitimacy import is_strictly_legitimate
from skipring.world.snapshot import Parcel, Snapshot
from tests.model_checking.branching import Branching
from tests.model_checking.exhaustive import CHECKED, Exploration, all_states_of_two, explore


def sample(one_in: int) -> Iterator[Snapshot]:
    return islice(all_states_of_two(), 0, None, one_in)


def rules(mode: Mode, *without: Rule) -> ProtocolConfig:
    return ProtocolConfig(rules=Rules.of(mode, without), repairs=False)


def explain(found: Exploration) -> str:
    """Describe the failure, with a world file as an example."""
    example = found.breach[0] if found.breach is not None else found.lost_state
    world = render_world(example) if example is not None else ""
    return f"{found.breaches} breaches of closure, {found.lost} states are lost, e.g.\n{world}"


# --- the claim -------------------------------------------------------------------------


def test_two_subscribers_have_26244_initial_states() -> None:
    assert len({render_world(state) for state in all_states_of_two()}) == 26_244


def test_sampled_initial_states_can_converge_and_stay_legitimate() -> None:
    found = explore(sample(one_in=997))
    assert found.initial == 27
    assert 0 < found.strict < found.legitimate < found.states < found.transitions
    assert found.is_good, explain(found)


@pytest.mark.heavy
def test_one_initial_state_in_97_can_converge_and_stay_legitimate() -> None:
    found = explore(sample(one_in=97))
    assert found.initial == 271
    assert found.is_good, explain(found)


@pytest.mark.slow
def test_every_initial_state_can_converge_and_stay_legitimate() -> None:
    found = explore(all_states_of_two())
    assert found.initial == 26_244
    assert found.states > 1_000_000
    assert found.is_good, explain(found)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(rules(Mode.FIXED, Rule.NEIGHBOUR_TIMEOUT), id="fixed"),
        pytest.param(rules(Mode.FAST, Rule.NEIGHBOUR_TIMEOUT, Rule.DIGEST), id="with a queue"),
    ],
)
def test_other_sets_of_rules_converge(config: ProtocolConfig) -> None:
    found = explore(sample(one_in=997), config)
    assert found.is_good, explain(found)


# --- the check can fail ----------------------------------------------------------------


def test_ring_that_ignores_its_configuration_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ring, "_overwrite", lambda *_: None)

    found = explore(sample(one_in=997))

    assert not found.is_good
    assert found.lost_state is not None
    again = explore([parse_world(render_world(found.lost_state))])
    assert again.strict == 0
    assert again.lost == again.states


def test_ring_that_drops_an_edge_at_every_tick_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    on_tick = Ring.on_tick

    def forgetful(self: Ring, me: Peer, out: Outbox) -> None:
        on_tick(self, me, out)
        self.wrap = None

    monkeypatch.setattr(Ring, "on_tick", forgetful)

    found = explore(sample(one_in=997))

    assert not found.is_good
    assert found.breach is not None
    before, after = found.breach
    assert is_strictly_legitimate(before)
    assert not is_strictly_legitimate(after)


def test_closure_is_checked_beyond_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the damaging message in the first step; the edge is lost in the second."""
    on_tick = Ring.on_tick

    def poisonous(self: Ring, me: Peer, out: Outbox) -> None:
        on_tick(self, me, out)
        for neighbour in self.peers():
            out.send(neighbour.node, RemoveConnections(self.node))

    monkeypatch.setattr(Ring, "on_tick", poisonous)

    found = explore([legitimate_world(2, Random(0))])

    assert found.breach is not None
    before, _ = found.breach
    assert not is_strictly_legitimate(before)


# --- implementation --------------------------------------------------------------------


def test_branching_chance_takes_every_branch_once() -> None:
    chance = Branching()
    ways = [
        (chance.getrandbits(3) == 0 and chance.randrange(4) == 0, chance.randrange(1))
        for _ in chance.ways()
    ]
    assert ways == [(True, 0), (False, 0), (False, 0)]


@pytest.mark.parametrize("number", [5996, 13491, 22485])  # of some hundred states each
def test_states_equal_those_found_by_stepping_the_machines(number: int) -> None:
    start = next(islice(all_states_of_two(), number, None))
    stepped = reachable(start)
    found = explore([start])
    assert found.states == len(stepped)
    assert found.strict == sum(is_strictly_legitimate(state) for state in stepped.values())


def reachable(start: Snapshot) -> dict[str, Snapshot]:
    """Return all states that can follow, by the text of their world files: slow and simple."""
    found = {render_world(start): start}
    waiting = [start]
    while waiting:
        for state in successors(waiting.pop()):
            text = render_world(state)
            if text not in found:
                found[text] = state
                waiting.append(state)
    return found


def successors(state: Snapshot) -> Iterator[Snapshot]:
    if not state.channels:
        for node in (SUPERVISOR, *state.subscribers):
            for bit in (0, 1):
                yield step(state, node, None, bit)
    for parcel in state.channels:
        yield step(state, parcel.to, parcel.message, 0)


class OneBit(Random):
    """Chance with a constant outcome; with labels of one bit no node draws twice."""

    bit = 0

    def getrandbits(self, k: int, /) -> int:
        return self.bit


def step(state: Snapshot, node: NodeId, message: Message | None, bit: int) -> Snapshot:
    """Return the state after one event, with the channels as a sorted set."""
    chance = OneBit()
    chance.bit = bit
    supervisor = Supervisor(config=CHECKED)
    supervisor.handle(Overwritten(state.supervisor))
    machines: dict[NodeId, Subscriber] = {}
    for name, variables in state.subscribers.items():
        machines[name] = Subscriber(name, topic="news", rng=chance, config=CHECKED)
        machines[name].handle(Overwritten(variables))
    actor = supervisor if node == SUPERVISOR else machines[node]
    effects = actor.handle(Tick() if message is None else Received(message))
    sent = {(effect.to, effect.message) for effect in effects if isinstance(effect, Send)}
    kept = {(parcel.to, parcel.message) for parcel in state.channels} - {(node, message)}
    return Snapshot(
        supervisor=supervisor.state(),
        subscribers={name: machine.state() for name, machine in machines.items()},
        channels=tuple(Parcel(to, text) for to, text in sorted(kept | sent, key=repr)),
    )


# --- limits ----------------------------------------------------------------------------


def test_rule_with_memory_outside_the_state_is_refused() -> None:
    with pytest.raises(ValueError, match="R14"):
        explore(sample(one_in=997), ProtocolConfig())


def test_comparison_of_tries_is_refused_because_it_draws_numbers() -> None:
    with pytest.raises(ValueError, match="session"):
        explore(sample(one_in=997), replace(CHECKED, repairs=True))


def test_initial_states_of_different_subscribers_are_refused() -> None:
    one, two = (legitimate_world(n, Random(0)) for n in (1, 2))
    with pytest.raises(ValueError, match="same subscribers"):
        explore([one, two])


def test_state_space_beyond_the_limit_is_abandoned() -> None:
    with pytest.raises(OverflowError, match="more than 100 states"):
        explore(sample(one_in=97), states_max=100)
