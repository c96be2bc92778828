"""Scenarios: validation, the effect of every field, and named scenarios."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, fields, replace

from skipring.core.config import Mode, ProtocolConfig, Rule, Spread
from skipring.errors import ScenarioError
from skipring.sim.network_faults import Delay, Duplication, Loss, Partition
from skipring.sim.process_faults import (
    Churn,
    CrashWave,
    DrainWave,
    OracleDetector,
    PublishLoad,
    SupervisorRestart,
    WrongSuspicion,
)
from skipring.sim.runner import Simulation
from skipring.sim.scenario import N_MAX, PUBLICATIONS_MAX, Scenario, make_scenario, read_scenario
from skipring.world.snapshot import publications_in
from tests.support.runs import run

SCENARIOS = Path(__file__).parents[2] / "scenarios"
FILES = sorted({*SCENARIOS.glob("*.toml")} - {*SCENARIOS.glob("lab-*.toml")})  # matrices
N_TESTED = 1000  # of scenarios that take longer than a test

# --- refusals --------------------------------------------------------------------------

SPAN = {"share": 0.5, "from_round": 0, "to_round": 9}
REFUSED: list[tuple[dict[str, Any], str]] = [
    # unknown keys
    ({"nodes": 16}, "unknown key 'nodes'"),
    ({"partition": SPAN | {"island": 3}}, "partition: unknown key island"),
    ({"delay": {"share": 0.1, "rounds_max": 3, "rounds": 3}}, "delay: unknown key rounds"),
    ({"crash": {"rounds": [1], "share": 0.5, "n": 3}}, "crash: unknown key n"),
    ({"wrong_suspicion": {"rounds": 1, "rate": 0.5, "share": 0.5}}, "wrong_suspicion: unknown"),
    # missing keys
    ({"partition": {"share": 0.5}}, "partition: object missing required field from_round"),
    # wrong types
    ({"n": "16"}, "n: expected a whole number"),
    ({"n": 16.5}, "n: expected a whole number"),
    ({"n": True}, "n: expected a whole number"),
    ({"n": None}, "n: expected a whole number"),
    ({"adversary": 5}, "adversary: expected a text"),
    ({"mode": 5}, "mode: expected a text"),
    ({"without": "R9"}, "without: expected a list"),
    ({"without": [9]}, "without[0]: expected a text"),
    ({"scheduler": []}, "scheduler: expected a text"),
    ({"loss": "much"}, "loss: expected a number"),
    ({"seed": 1.5}, "seed: expected a whole number"),
    ({"title": 5}, "title: expected a text"),
    ({"supervisor_restarts": 5}, "supervisor_restarts: expected a list"),
    ({"supervisor_restarts": ["5"]}, "supervisor_restarts[0]: expected a whole number"),
    ({"partition": 3}, "partition: expected object | null, got "),
    ({"crash": {"rounds": 3, "share": 0.5}}, "crash.rounds: expected a list"),
    # out of range
    ({"n": 0}, "n: expected a whole number >= 1"),
    ({"n": -1}, "n: expected a whole number >= 1"),
    ({"n": N_MAX + 1}, f"n: expected a whole number <= {N_MAX}"),
    ({"n": 10**30}, f"n: expected a whole number <= {N_MAX}"),
    ({"loss": -0.1}, "loss: expected a number >= 0"),
    ({"loss": 1}, "loss: expected a number < 1"),
    ({"loss": float("nan")}, "loss: expected a number >= 0"),
    ({"duplicate": 1.1}, "duplicate: expected a number <= 1"),
    ({"churn": -1}, "churn: expected a number >= 0"),
    ({"churn": float("inf")}, "churn: expected a number <= 1"),
    ({"max_rounds": -1}, "max_rounds: expected a whole number >= 0"),
    ({"closure": -1}, "closure: expected a whole number >= 0"),
    ({"closure": 10**10}, "closure: expected a whole number <= 1000000000"),
    ({"detector_delay": -1}, "detector_delay: expected a whole number >= 0"),
    ({"supervisor_restarts": [1, -1]}, "supervisor_restarts[1]: expected a whole number >= 0"),
    ({"delay": {"share": 0.1, "rounds_max": 0}}, "delay.rounds_max: expected a whole number >= 1"),
    ({"delay": {"share": 2, "rounds_max": 3}}, "delay.share: expected a number <= 1"),
    ({"partition": SPAN | {"share": -1}}, "partition.share: expected a number >= 0"),
    ({"partition": SPAN | {"to_round": -1}}, "partition.to_round: expected a whole number >= 0"),
    ({"crash": {"rounds": [-1], "share": 0.5}}, "crash.rounds[0]: expected a whole number >= 0"),
    (
        {"wrong_suspicion": {"rounds": 3, "share": 3}},
        "wrong_suspicion.share: expected a number <= 1",
    ),
    ({"publications": -1}, "publications: expected a whole number >= 0"),
    (
        {"publications": PUBLICATIONS_MAX + 1},
        f"publications: expected a whole number <= {PUBLICATIONS_MAX}",
    ),
    ({"batch": 0}, "batch: expected a whole number >= 1"),
    ({"batch": 257}, "batch: expected a whole number <= 256"),
    ({"publish": {"rounds": -1}}, "publish.rounds: expected a whole number >= 0"),
    ({"publish": {"rounds": 1, "per_round": 0}}, "publish.per_round: expected a whole number >= 1"),
    (
        {"publish": {"rounds": 1, "per_round": 1001}},
        "publish.per_round: expected a whole number <= 1000",
    ),
    ({"publish": {"per_round": 1}}, "publish: object missing required field rounds"),
    ({"publish": {"rounds": 1, "share": 1}}, "publish: unknown key share"),
    # unknown names
    ({"adversary": "A99"}, "adversary: 'A99' is not one of A00, A01,"),
    ({"adversary": "a00"}, "adversary: 'a00' is not one of A00, A01,"),
    ({"scheduler": "fair"}, "scheduler: 'fair' is not one of random, sync, delay, swizzle"),
    ({"spread": "gossip"}, "spread: expected one of adaptive, tree, flood, got 'gossip'"),
    ({"mode": "slow"}, "mode: expected one of paper, fixed, fast, deterministic, got 'slow'"),
    ({"without": ["R9", "R99"]}, "without[1]: expected one of R1, R2,"),
]


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(ScenarioError) as refused:
        make_scenario(values)
    return str(refused.value)


@pytest.mark.parametrize(("values", "sentence"), REFUSED)
def test_invalid_scenario_is_refused_in_one_sentence_with_the_field(
    values: dict[str, Any], sentence: str
) -> None:
    said = refusal(values)
    assert said.startswith(sentence)
    assert len(said) < 300
    assert "\n" not in said
    assert "`" not in said


@pytest.mark.parametrize(
    "values",
    [
        {"adversary": "A" * 10**5},
        {"scheduler": "s" * 10**5},
        {"mode": "m" * 10**5},
        {"without": ["R" * 10**5]},
        {"k" * 10**5: 1},
        {"two\nlines": 1},
    ],
    ids=["adversary", "scheduler", "mode", "without", "key", "line break"],
)
def test_refusal_is_short_for_any_input(values: dict[str, Any]) -> None:
    said = refusal(values)
    assert len(said) < 350
    assert "\n" not in said


# --- files -----------------------------------------------------------------------------


def test_file_is_read_as_plain_values(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('title = "é"\nn = 5\n[crash]\nrounds = [1]\nshare = 0.5\n', encoding="utf-8")
    values = read_scenario(path)
    assert values == {"title": "é", "n": 5, "crash": {"rounds": [1], "share": 0.5}}
    assert make_scenario(values).crash is not None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"n = ", "s.toml is not valid TOML: Invalid value"),
        (b"n = 1\nn = 2", "s.toml is not valid TOML: Cannot overwrite a value"),
        (b"\xff", "cannot read the scenario s.toml: not UTF-8"),
        (None, "cannot read the scenario s.toml: No such file"),
        (b"n = " + b"1" * 5000, "s.toml is not valid TOML: "),
        (b"n = " + b"[" * 5000, "s.toml is not valid TOML: "),
    ],
    ids=["no value", "twice", "not UTF-8", "absent", "large number", "deep"],
)
def test_unusable_file_is_refused_in_one_sentence(
    content: bytes | None, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ScenarioError) as refused:
        read_scenario(path)
    said = str(refused.value)
    assert said.startswith(sentence)
    assert len(said) < 300
    assert "\n" not in said


# --- every field has an effect ---------------------------------------------------------

SMALL = {"n": 12, "adversary": "A15"}
DEAD = {"n": 16, "adversary": "A36"}
EFFECTS: dict[str, tuple[dict[str, Any], Any]] = {
    "n": (SMALL, 13),
    "adversary": (SMALL, "A05"),
    "mode": (SMALL, "fixed"),
    "without": (SMALL, ["R14"]),
    "scheduler": (SMALL, "sync"),
    "loss": (SMALL, 0.2),
    "duplicate": (SMALL, 0.2),
    "churn": (SMALL, 0.02),
    "seed": (SMALL, 1),
    "max_rounds": (SMALL, 2),
    "closure": (SMALL, 0),
    "detector_delay": (DEAD, 9),
    "supervisor_restarts": (SMALL, [3]),
    "delay": (SMALL, {"share": 0.5, "rounds_max": 3}),
    "partition": (SMALL, {"share": 0.5, "from_round": 0, "to_round": 9}),
    "crash": (SMALL, {"rounds": [2], "share": 0.5}),
    "drain": (SMALL, {"rounds": [2], "share": 0.5}),
    "wrong_suspicion": (SMALL, {"rounds": 5, "share": 0.5}),
    "publisher_crashes": (SMALL, [2]),
    "config": (SMALL | {"adversary": "A15"}, "live"),
    "orders": (SMALL, [3, 5]),
    "publications": (SMALL, 5),
    "batch": (SMALL | {"publications": 5}, 256),
    "publish": (SMALL, {"rounds": 5, "per_round": 2}),
    "policy": (SMALL, {"max_count": 3}),
    "clocks": (SMALL | {"policy": {"max_count": 3}}, {"off_s": 9.0, "jumps": [2]}),
    "spread": (SMALL | {"publish": {"rounds": 5}}, "flood"),
}
WITHOUT_EFFECT = {"title"}  # for readers only


def outcome(values: dict[str, Any]) -> dict[str, Any]:
    """Return the report of a run without the fields that repeat the scenario."""
    report = asdict(run(**values))
    for name in ("n", "seed", "mode", "adversary"):
        del report[name]
    return report


def test_table_of_effects_has_every_field() -> None:
    assert EFFECTS.keys() | WITHOUT_EFFECT == {field.name for field in fields(Scenario)}


@pytest.mark.parametrize("name", EFFECTS)
def test_every_field_has_an_effect(name: str) -> None:
    values, other = EFFECTS[name]
    assert outcome({**values, name: other}) != outcome(values)


@pytest.mark.parametrize("name", [name for name in EFFECTS if name not in ("n", "adversary")])
def test_explicit_default_equals_an_omitted_field(name: str) -> None:
    default = next(field.default for field in fields(Scenario) if field.name == name)
    assert make_scenario({name: default}) == make_scenario({})


def test_faults_and_incidents_follow_from_the_fields() -> None:
    scenario = make_scenario(
        {
            "adversary": "A46",
            "loss": 0.1,
            "duplicate": 0.2,
            "churn": 0.3,
            "detector_delay": 4,
            "supervisor_restarts": [5],
            "delay": {"share": 0.6, "rounds_max": 7},
            "partition": {"share": 0.5, "from_round": 8, "to_round": 9},
            "crash": {"rounds": [10], "share": 0.11},
            "drain": {"rounds": [11], "share": 0.12},
            "wrong_suspicion": {"rounds": 12, "share": 0.13},
            "publish": {"rounds": 14, "per_round": 15},
        }
    )
    nodes = ["a", "b", "c", "d"]
    partition, *others = scenario.faults(nodes)
    assert isinstance(partition, Partition)
    assert len(partition.island) == 2
    assert (partition.from_round, partition.to_round) == (8, 9)
    assert others == [Duplication(0.2), Loss(0.1), Delay(0.6, 7)]
    *incidents, detector = scenario.incidents()
    assert detector == OracleDetector(4)  # last: it sees the crashes of the round
    assert set(incidents) == {
        Churn(0.3),
        CrashWave((10,), 0.11),
        DrainWave((11,), 0.12),
        CrashWave((2, 4, 6, 8), 1 / 16),  # from the adversary
        WrongSuspicion(0.13, 12),
        PublishLoad(14, 15),
        SupervisorRestart((5,)),
    }
    assert scenario.warm_up_rounds == 100


@pytest.mark.parametrize(("seed", "loss"), [(5, 0.0), (5, 0.2), (0, 0.0), (4, 0.0), (14, 0.2)])
def test_members_that_leave_with_a_drain_hand_over_every_publication(
    seed: int, loss: float
) -> None:
    """Most scattered publications are at one to eight members, which may all leave."""
    scenario = make_scenario(
        {
            "n": 16,
            "publications": 60,
            "drain": {"rounds": [0, 9, 10, 20], "share": 0.3},
            "loss": loss,
            "seed": seed,
        }
    )
    simulation = Simulation(scenario)
    held = {
        each.id for machine in simulation.world.subscribers.values() for each in machine.batches()
    }
    report = simulation.run()
    world = simulation.world
    assert report.is_good, report.violations
    members = [machine for machine in world.subscribers.values() if machine.wants]
    assert len(members) == 16 - len(world.drained) <= 8
    assert None not in world.drained.values()
    for machine in members:
        assert held <= {each.id for each in machine.batches()}


def test_default_scenario_is_live_without_faults_and_incidents() -> None:
    scenario = make_scenario({})
    assert scenario.protocol == ProtocolConfig.live()
    assert scenario.faults(["a", "b"]) == ()
    assert scenario.incidents() == ()


def test_oracle_replaces_the_failure_detector_if_eager_or_requested() -> None:
    eager = make_scenario({"config": "eager"})
    assert eager.protocol == ProtocolConfig.eager()
    assert eager.incidents() == (OracleDetector(0),)
    late = make_scenario({"detector_delay": 3})
    assert not late.protocol.detects_failures
    assert late.incidents() == (OracleDetector(3),)


def test_publications_of_the_scenario_are_scattered_over_the_start() -> None:
    start = make_scenario({"n": 8, "publications": 30}).start()
    held = {row.id for state in start.subscribers.values() for row in state.publications}
    flying = {row.id for parcel in start.channels for row in publications_in(parcel.message)}
    assert len(held | flying) == 30
    assert held.isdisjoint(flying)


def test_publications_leave_the_rest_of_the_start_unchanged() -> None:
    without, scattered = (make_scenario(SMALL | {"publications": n}).start() for n in (0, 9))
    assert scattered.supervisor == without.supervisor
    assert scattered.channels[: len(without.channels)] == without.channels
    for node, state in scattered.subscribers.items():
        assert replace(state, publications=()) == without.subscribers[node]


def test_run_does_not_end_before_the_last_publishing_round() -> None:
    assert make_scenario({"publish": {"rounds": 30}}).last_disturbed_round == 29
    simulation = Simulation(make_scenario({"n": 4, "publish": {"rounds": 30}, "closure": 0}))
    assert simulation.run().published == 30
    assert simulation.world.round >= 30


def test_mode_paper_floods_by_default() -> None:
    spreads = [make_scenario({"mode": mode.value}).protocol.spread for mode in Mode]
    assert spreads == [Spread.FLOOD, *[Spread.ADAPTIVE] * 3]


def test_island_depends_on_the_seed_alone() -> None:
    span = {"share": 0.4, "from_round": 0, "to_round": 1}
    nodes = [f"n{number}" for number in range(20)]
    islands = [
        make_scenario({"partition": span, "seed": seed, "loss": loss}).faults(nodes)[0]
        for seed, loss in ((0, 0), (0, 0.5), (1, 0))
    ]
    assert islands[0] == islands[1] != islands[2]
    assert all(isinstance(cut, Partition) and len(cut.island) == 8 for cut in islands)


def test_disabled_rules_are_off() -> None:
    rules = make_scenario({"without": ["R9", "S11", "k+1"]}).protocol.rules
    off = {rule for rule in Rule if not getattr(rules, rule.name.lower())}
    assert off == {Rule.NEIGHBOUR_TIMEOUT, Rule.PUSH, Rule.RARE_REQUESTS, Rule.DETERMINISTIC}
    assert make_scenario({"mode": "paper"}).mode is Mode.PAPER


# --- the named scenarios ---------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_named_scenario_behaves_as_its_title_states(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")
    scenario = make_scenario(read_scenario(path))
    claim = re.fullmatch(r"(?:heals within (\d+) rounds|does not heal): .+", scenario.title)
    assert claim is not None, scenario.title
    if scenario.n > N_TESTED:
        scenario = replace(scenario, n=N_TESTED, closure=20)
    report = Simulation(scenario).run()
    if claim[1] is None:
        assert not report.is_good
        assert report.violations
    else:
        assert report.is_good, report.violations
        assert report.rounds_strict is not None
        assert report.rounds_strict <= int(claim[1])
