"""Machines in a given state with their hosts, rings, and scripted random numbers.

The machine under test is always called ``m``, so that other ids sort on both sides of it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from skipring.core.config import Mode, ProtocolConfig, Rule, Rules
from skipring.core.effects import Outbox
from skipring.core.events import Overwritten
from skipring.core.labels import Label
from skipring.core.log import Log, MemoryLog
from skipring.core.messages import (
    CheckLabel,
    GetConfiguration,
    Introduce,
    RemoveConnections,
    SetConfiguration,
)
from skipring.core.peers import LEFT, RIGHT, SUPERVISOR, NodeId, Peer
from skipring.core.ring import Ring
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.subscriber import Subscriber
from skipring.core.supervisor import Supervisor
from skipring.world.adversaries.builders import database_of
from tests.support.fake_host import FakeHost, Sent, receivers, sent

Edges: TypeAlias = tuple[Peer | None, Peer | None, Peer | None]

ME = "m"
TOPIC = "news"
# A slow machine must not make a property fail that holds.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
PAPER, FIXED, FAST, DETERMINISTIC = (Rules.of(mode) for mode in Mode)


def without(*rules: Rule) -> Rules:
    """Return all rules but these."""
    return Rules.of(Mode.FAST, rules)


def only(*rules: Rule) -> Rules:
    """Return the paper's pseudocode with these rules."""
    return replace(PAPER, **{rule.name.lower(): True for rule in rules})


def rule_sets() -> SearchStrategy[Rules]:
    """Draw rules: those of a mode, or any subset, consistent or not."""
    anything = st.builds(Rules, *(st.booleans() for _ in Rule))
    return st.sampled_from([FAST, FIXED, PAPER]) | anything


def label(bits: str) -> Label:
    """Return the label written as ``bits``."""
    return Label.parse(bits)


def peer(bits: str, node: NodeId) -> Peer:
    """Return a node under the label written as ``bits``."""
    return Peer(label(bits), node)


# -- effects -----------------------------------------------------------------------------------


def asked(*nodes: NodeId) -> Sent:
    """Return the messages that ask the supervisor for these nodes' configurations."""
    return [(SUPERVISOR, GetConfiguration(node)) for node in nodes]


def written(action: Callable[[Outbox], object]) -> Sent:
    """Return the messages that a part of a machine wrote into its outbox."""
    out = Outbox()
    action(out)
    return sent(out)


# -- rings ---------------------------------------------------------------------------------------


def ring_at(
    bits: str | None,
    *,
    left: Peer | None = None,
    right: Peer | None = None,
    wrap: Peer | None = None,
    rules: Rules = FAST,
) -> Ring:
    """Return the ring edges of ``m`` under a label."""
    ring = Ring(ME, rules)
    ring.me = peer(bits, ME) if bits is not None else None
    ring.neighbours = [left, right]
    ring.wrap = wrap
    return ring


def edges(ring: Ring) -> Edges:
    """Return left, right and wrap."""
    return ring.neighbours[LEFT], ring.neighbours[RIGHT], ring.wrap


def hear(
    ring: Ring, message: CheckLabel | Introduce | RemoveConnections | SetConfiguration
) -> Sent:
    """Let a ring receive a message; return the messages sent."""
    match message:
        case CheckLabel():
            return written(lambda out: ring.on_check_label(message, out))
        case Introduce(peer=subject, link=link, first_hand=first_hand):
            return written(lambda out: ring.introduce(subject, link, out, first_hand=first_hand))
        case RemoveConnections(node=node):
            return written(lambda out: ring.on_remove_connections(node))
        case SetConfiguration(label=own):
            assert own is not None, "a configuration without a label never reaches the ring"
            return written(lambda out: ring.configure(own, message, out))


def timeout(ring: Ring) -> Sent:
    """Let a ring run its part of Timeout; return the messages sent."""
    assert ring.me is not None
    me = ring.me
    return written(lambda out: ring.on_tick(me, out))


# -- whole machines ------------------------------------------------------------------------------


class Scripted(Random):
    """Random numbers that are always ``answer``; records the ranges of the draws."""

    def __init__(self, answer: int) -> None:
        super().__init__(0)
        self.answer = answer
        self.odds: list[int] = []

    def getrandbits(self, k: int, /) -> int:
        """Draw the answer from 2^k numbers."""
        self.odds.append(1 << k)
        return self.answer

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Draw the answer from a range."""
        self.odds.append(len(range(start) if stop is None else range(start, stop, step)))
        return self.answer


def subscriber(
    state: SubscriberState,
    *,
    rules: Rules = FAST,
    rng: Random | None = None,
    node: NodeId = ME,
    config: ProtocolConfig | None = None,
    log: Log | None = None,
) -> FakeHost[Subscriber]:
    """Return the host of a subscriber in a given state, by default without random requests."""
    machine = Subscriber(
        node,
        topic=TOPIC,
        rng=rng if rng is not None else Scripted(1),
        config=config if config is not None else ProtocolConfig(rules=rules),
        log=log if log is not None else MemoryLog(state.publications),
    )
    machine.handle(Overwritten(state))
    return FakeHost(machine)


def supervisor(*nodes: NodeId, rules: Rules = FAST, cursor: int = 0) -> FakeHost[Supervisor]:
    """Return the host of a supervisor that has recorded these nodes, in this order."""
    return loaded_supervisor(SupervisorState(database=database_of(nodes), next=cursor), rules=rules)


def loaded_supervisor(state: SupervisorState, *, rules: Rules = FAST) -> FakeHost[Supervisor]:
    """Return the host of a supervisor in a given state, its database not yet repaired."""
    machine = Supervisor(config=ProtocolConfig(rules=rules))
    machine.handle(Overwritten(state))
    return FakeHost(machine)


def told(host: FakeHost[Supervisor], messages: Sent) -> list[NodeId]:
    """Return the nodes that a supervisor sent their current configuration, and nothing else."""
    nodes = receivers(messages, SetConfiguration)
    roster = host.machine.roster
    assert messages == [(node, roster.configuration_of(node)) for node in nodes]
    return nodes
