"""Default configuration: nodes, clusters, simulations and trials run ProtocolConfig.live()."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from skipring.cli import skipring
from skipring.core.config import ProtocolConfig
from skipring.core.subscriber import Subscriber
from skipring.core.supervisor import Supervisor
from skipring.lab.experiments.matrix import KINDS, OF_THE_PAPER, Trial
from skipring.lab.experiments.trials import perform
from skipring.node.settings import NodeSettings
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.testing import Cluster
from tests.support.source_tree import modules

LIVE = ProtocolConfig.live()
# Modules that define the protocol without deferral.
EAGER = {"core/config.py"}
OTHERS = {"topology", *OF_THE_PAPER}  # without machines, and in mode paper
OPTIONS_OF_A_TRIAL: Mapping[str, Mapping[str, Any]] = {
    "converge": {"adversary": "A00"},
    "spread": {"publications": 1},
}


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[ProtocolConfig]]:
    """Record the configuration of each new machine, by class."""
    found: dict[str, list[ProtocolConfig]] = {"Subscriber": [], "Supervisor": []}
    for machine in (Subscriber, Supervisor):
        monkeypatch.setattr(machine, "__init__", _recording(machine, found[machine.__name__]))
    return found


def _recording(machine: type, found: list[ProtocolConfig]) -> Callable[..., None]:
    make = machine.__init__

    def record(self: object, *args: Any, config: ProtocolConfig, **rest: Any) -> None:  # noqa: ANN401
        found.append(config)
        make(self, *args, config=config, **rest)

    return record


def is_live(used: dict[str, list[ProtocolConfig]]) -> bool:
    """Return True if machines of both classes were made, all with the live configuration.

    An operator sets the delay of policies.
    """
    found = [each for made in used.values() for each in made]
    same = (replace(each, policy_delay_us=LIVE.policy_delay_us) == LIVE for each in found)
    return all(used.values()) and all(same)


def test_settings_of_a_process_are_live() -> None:
    assert NodeSettings().config == LIVE


def test_cluster_is_live(used: dict[str, list[ProtocolConfig]]) -> None:
    async def scene() -> None:
        async with Cluster(n=1) as cluster:
            await cluster.wait_healthy(timeout=60)

    asyncio.run(scene())
    assert is_live(used)


def test_scenario_without_config_is_live(used: dict[str, list[ProtocolConfig]]) -> None:
    assert Simulation(make_scenario({"n": 4})).run().is_good
    assert is_live(used)


def test_simulate_command_is_live(used: dict[str, list[ProtocolConfig]]) -> None:
    words = ["simulate", "--n", "4", "--json"]
    outcome = CliRunner().invoke(skipring, words, standalone_mode=False)
    assert outcome.exception is None
    assert is_live(used)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - OTHERS))
def test_trial_is_live(kind: str, used: dict[str, list[ProtocolConfig]]) -> None:
    values = OPTIONS_OF_A_TRIAL.get(kind, {})
    run = Trial(kind=kind, n=4, rounds=5, max_rounds=300, closure=3, **values)
    assert perform(run).row["error"] is None
    assert is_live(used)


def eager_configs(tree: ast.Module) -> list[str]:
    """Return the expressions that make a configuration other than the live one."""
    found = []
    for node in ast.walk(tree):
        match node:
            case (
                ast.Call(func=ast.Name("ProtocolConfig"))
                | ast.Call(func=ast.Attribute(ast.Name("ProtocolConfig" | "cls"), "eager"))
                | ast.Attribute(ast.Name("Preset"), "EAGER")
            ):
                found.append(ast.unparse(node))
    return found


def test_only_listed_modules_are_eager() -> None:
    assert {module for module, tree in modules() if eager_configs(tree)} == EAGER


@pytest.mark.parametrize("text", ["ProtocolConfig()", "ProtocolConfig.eager()", "Preset.EAGER"])
def test_eager_config_is_found(text: str) -> None:
    assert eager_configs(ast.parse(f"config = {text}")) == [text]
    assert eager_configs(ast.parse("config = ProtocolConfig.live()")) == []
