"""Senders: from every initial state a machine names itself, so no message is dropped."""

from __future__ import annotations

import pytest

from skipring.core.config import Mode
from skipring.core.effects import Effect, Send
from skipring.core.messages import CLAIMS, names_another
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.subscriber import Subscriber
from skipring.core.supervisor import Supervisor
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.world.adversaries import ADVERSARIES

PAPER = {"mode": Mode.PAPER, "n": 8, "adversary": "A01", "max_rounds": 20}


@pytest.mark.parametrize(
    "scenario",
    [PAPER, *({"n": 8, "adversary": name, "max_rounds": 200} for name in ADVERSARIES)],
    ids=["paper", *ADVERSARIES],
)
def test_machine_never_names_another_sender(
    scenario: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[Send]()

    def check(sender: NodeId, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Send):
                assert not names_another(effect.message, sender), (sender, effect)
                sent.append(effect)
        return effects

    of_node, of_supervisor = Subscriber.handle, Supervisor.handle
    monkeypatch.setattr(Subscriber, "handle", lambda it, event: check(it.node, of_node(it, event)))
    monkeypatch.setattr(
        Supervisor, "handle", lambda it, event: check(SUPERVISOR, of_supervisor(it, event))
    )
    Simulation(make_scenario(scenario)).run()
    assert any(type(effect.message) in CLAIMS for effect in sent)
