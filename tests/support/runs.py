"""Running scenarios in tests: a failure shows the scenario file that replays it."""

from __future__ import annotations

import json

from skipring.sim.runner import Report, Simulation
from skipring.sim.scenario import make_scenario


def run(**values: object) -> Report:
    """Run a scenario, with the eager configuration unless it says otherwise."""
    return Simulation(make_scenario({"config": "eager"} | values)).run()


def replay(**values: object) -> str:
    """Return the command that runs the same scenario."""
    values = {"config": "eager"} | values
    lines = [f"{name} = {_toml(value)}" for name, value in values.items()]
    return "\n".join(["replay: skipring simulate FAILED.toml, with this in the file:", *lines])


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + "}"
    return json.dumps(value)  # scenarios contain strings, numbers and lists of them


def assert_heals(rounds_max: int, **values: object) -> Report:
    """Run a scenario that must become strictly legitimate in time and stay so."""
    values = {**values, "max_rounds": rounds_max}
    report = run(**values)
    assert report.is_good, f"{replay(**values)}\n{report.violations}"
    assert report.closure_ok is not None
    assert report.rounds_explicit is not None
    assert report.rounds_strict is not None
    assert report.rounds_explicit <= report.rounds_strict <= rounds_max
    return report
