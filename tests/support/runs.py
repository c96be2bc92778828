"""Running scenarios in tests: a failure names the command that replays it."""

from __future__ import annotations

from skipring.sim.run import Report, Simulation
from skipring.sim.scenario import make_scenario


def run(**values: object) -> Report:
    """Run a scenario."""
    return Simulation(make_scenario(values)).run()


def replay(**values: object) -> str:
    """The command that runs the same scenario, for the message of a failing test."""
    words = (f"--{name.replace('_', '-')} {value}" for name, value in values.items())
    return f"replay: skipring simulate {' '.join(words)}"


def assert_heals(rounds_max: int, **values: object) -> Report:
    """Run a scenario that must turn strictly legitimate in time and stay closed."""
    report = run(**values, max_rounds=rounds_max)
    assert report.converged, f"{replay(**values)}\n{report.violations}"
    assert report.closure_ok, f"closure broken; {replay(**values)}"
    assert report.rounds_explicit is not None
    assert report.rounds_strict is not None
    assert report.rounds_explicit <= report.rounds_strict <= rounds_max
    return report
