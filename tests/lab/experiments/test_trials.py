"""Kinds of experiments: their measures agree with the simulator and the paper."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from skipring.core.config import Mode, ProtocolConfig
from skipring.core.labels import Label
from skipring.core.peers import Peer
from skipring.core.state import SubscriberState
from skipring.core.topology import levels
from skipring.lab.experiments import overlays
from skipring.lab.experiments.matrix import KINDS, Trial
from skipring.lab.experiments.results import RESULTS, ROUNDS
from skipring.lab.experiments.trials import Samples, TrialResult, degrees, perform
from skipring.sim.engine import World
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.world.snapshot import Snapshot

LIMITS = {"max_rounds": 300, "closure": 3}
OF_EACH_KIND = [
    Trial(kind="converge", n=8, adversary="A15", **LIMITS),
    Trial(kind="converge", n=8, adversary="A47", publications=5, loss=0.1, **LIMITS),
    Trial(kind="converge", n=8, adversary="A00", churn=0.02, **LIMITS),
    Trial(kind="steady", n=8, rounds=20),
    Trial(kind="subscribe", n=8, **LIMITS),
    Trial(kind="unsubscribe", n=8, **LIMITS),
    Trial(kind="crash", n=8, **LIMITS),
    Trial(kind="spread", n=8, publications=2, **LIMITS),
    Trial(kind="livelock", n=8, adversary="A11", mode="paper", **LIMITS),
    Trial(kind="potential", n=8, publications=5, **LIMITS),
    Trial(kind="session", n=2, publications=5, mode="paper"),
    Trial(kind="topology", n=8),
]
of_every_kind = pytest.mark.parametrize("run", OF_EACH_KIND, ids=lambda run: run.kind)


def done(kind: str, n: int, **values: Any) -> TrialResult:  # noqa: ANN401
    outcome = perform(Trial(kind=kind, n=n, **{"max_rounds": 300, **values}))
    assert outcome.row["error"] is None
    return outcome


def test_samples_contain_a_run_of_every_kind() -> None:
    assert {run.kind for run in OF_EACH_KIND} == set(KINDS)


@of_every_kind
def test_rows_match_the_schemas_of_the_tables(run: Trial) -> None:
    outcome = perform(run)
    table = pa.Table.from_pylist([outcome.row | {"samples": outcome.samples}], schema=RESULTS)
    table.validate(full=True)
    assert set(outcome.row) == set(RESULTS.names) - {"samples"}
    assert all(list(sample) == ROUNDS.names[1:] for sample in outcome.samples)
    assert outcome.row["error"] is None
    assert outcome.row["converged"]
    assert outcome.row["run_id"] == run.run_id
    assert list(outcome.row["measures"]) == sorted(outcome.row["measures"])


def test_run_gives_the_same_rows_in_every_process() -> None:
    """Run with several hash seeds, which determine the order of sets."""
    program = (
        "from tests.lab.experiments.test_trials import OF_EACH_KIND, perform\n"
        "print([perform(run) for run in OF_EACH_KIND])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{[perform(run) for run in OF_EACH_KIND]}\n".encode()}


# -- converge --------------------------------------------------------------------------------


@pytest.mark.parametrize("churn", [0.0, 0.02])
@pytest.mark.parametrize("code", ["A00", "A15", "A47"])
def test_measured_healing_equals_the_report_of_simulate(code: str, churn: float) -> None:
    values = {"n": 8, "adversary": code, "loss": 0.1, "churn": churn, "seed": 3, "closure": 5}
    report = Simulation(make_scenario(values | {"without": ["R9", "S11"]})).run()
    run = Trial(kind="converge", **values, without="R9,S11", max_rounds=2000)
    row = perform(run).row
    for name in (
        *("rounds_explicit", "rounds_strict", "rounds_publications", "converged", "closure_ok"),
        *("messages", "events", "supervisor_requests", "published", "duplicates", "hops_mean"),
        *("delivered_by_spreading", "delivered_by_repair", "hops_max"),
    ):
        assert row[name] == getattr(report, name), name


@pytest.mark.parametrize("churn", [0.0, 0.02])
def test_rounds_agree_with_the_totals_of_the_run(churn: float) -> None:
    outcome = done("converge", 16, adversary="A46", publications=9, churn=churn, closure=0)
    row, samples = outcome.row, outcome.samples
    assert [sample["round"] for sample in samples] == list(range(len(samples)))
    assert sum(sample["messages"] for sample in samples) == row["messages"]
    assert sum(sample["supervisor_requests"] for sample in samples) == row["supervisor_requests"]
    assert max(sample["degree_max"] for sample in samples) == row["degree_peak"]
    for name in ("explicit", "strict", "publications"):
        last_bad = max((s["round"] for s in samples if not s[name]), default=-1)
        assert row[f"rounds_{name}"] == last_bad + 1
    for sample in samples:
        assert sample["explicit"] == (sample["layers"] == 5)
        assert sample["explicit"] or not sample["strict"]


# -- a ring that is left alone, and single operations ----------------------------------------


@pytest.mark.parametrize("mode", Mode)
def test_legitimate_ring_stays_unchanged_at_low_cost(mode: Mode) -> None:
    outcome = done("steady", 16, rounds=200, mode=mode)
    measures = outcome.row["measures"]
    assert outcome.row["closure_ok"]
    assert measures["changes"] == 0
    assert 0 < measures["requests_per_round"] < 2
    assert measures["check_label_per_node_round"] == 2
    assert len(outcome.samples) == 201
    assert all(sample["strict"] for sample in outcome.samples)
    total = sum(v for k, v in measures.items() if k.endswith("_per_node_round"))
    assert total == pytest.approx(2 * measures["messages_per_node_round"])  # it is one of them


@pytest.mark.parametrize("n", [16, 64])
@pytest.mark.parametrize(
    ("kind", "in_paper", "with_push"), [("subscribe", 1, 3), ("unsubscribe", 2, 6), ("crash", 1, 5)]
)
def test_operation_costs_the_supervisor_the_messages_of_the_theorem(
    kind: str, n: int, in_paper: int, with_push: int
) -> None:
    """Section 4.1; one message less if the round robin sends it anyway or no node moves."""
    for mode, cost in (("paper", in_paper), ("fixed", in_paper), ("fast", with_push)):
        costs = [
            done(kind, n, mode=mode, seed=seed, max_rounds=0).row["measures"]["supervisor_messages"]
            for seed in range(8)
        ]
        assert max(costs) == cost
        assert min(costs) >= 0


@pytest.mark.parametrize(("kind", "least"), [("subscribe", 1), ("unsubscribe", 1), ("crash", 0)])
def test_ring_is_legitimate_again_after_an_operation(kind: str, least: int) -> None:
    outcome = done(kind, 16, closure=5)
    row, measures = outcome.row, outcome.row["measures"]
    assert row["converged"]
    assert row["closure_ok"]
    assert measures["rounds"] == row["rounds_strict"] > 0
    assert measures["subscriber_messages"] >= least
    assert measures["requests"] >= least
    assert not outcome.samples[0]["explicit"]
    assert outcome.samples[-1]["strict"]


# -- hypotheses and lemmas -------------------------------------------------------------------


def test_hypotheses_of_a_run_are_those_of_its_start() -> None:
    names = ("start_connected", "start_crashed", "start_leavers", "start_tries_wrong")
    facts = {
        code: tuple(done("converge", 16, adversary=code, closure=0).row[name] for name in names)
        for code in ("A05", "A08", "A45", "A46")
    }
    assert facts == {
        "A05": (True, False, False, False),
        "A08": (False, False, False, False),
        "A45": (True, False, True, False),
        "A46": (True, True, False, False),  # nodes crash later
    }


def test_livelock_of_the_pseudocode_is_a_row_with_its_cycle() -> None:
    outcome = done("livelock", 8, adversary="A22", mode="paper")
    assert not outcome.row["converged"]
    assert outcome.row["measures"]["cycle_length"] == 144
    assert all(not sample["strict"] for sample in outcome.samples)


def test_run_that_multiplies_messages_ends_at_the_message_limit() -> None:
    """A14: Algorithm 1 forwards a reference with the label of all neighbours to both sides."""
    outcome = done("converge", 8, adversary="A14", mode="paper", seed=6)
    assert outcome.row["message_limit"]
    assert not outcome.row["converged"]
    assert outcome.row["error"] is None
    assert outcome.row["messages"] < 20_000
    assert not done("converge", 8, adversary="A14", mode="fast", seed=6).row["message_limit"]


# -- spreading and overlays ------------------------------------------------------------------


@pytest.mark.parametrize("n", [8, 33, 64])
def test_flood_takes_the_expected_messages_and_at_most_log_n_hops(n: int) -> None:
    """Section 4.3, if no message overtakes another; a node that repair reaches first is silent."""
    row = done("spread", n, spread="flood", scheduler="sync", publications=1).row
    messages, repaired = row["measures"]["spreading_messages"], row["delivered_by_repair"]
    assert messages == 4 * n - 6 if repaired == 0 else n <= messages < 4 * n - 6
    assert row["hops_max"] <= levels(n)
    assert row["published"] == 1
    assert row["delivered_by_spreading"] + repaired == n - 1


def test_tree_sends_one_message_per_delivery() -> None:
    row = done("spread", 64, spread="tree", scheduler="sync", publications=1).row
    assert row["measures"]["messages_per_delivery"] <= 1
    assert row["measures"]["rounds_to_all"] == row["rounds_publications"]


# -- what goes wrong -------------------------------------------------------------------------


def test_run_that_raises_becomes_a_row_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(n: int, seed: int) -> dict[str, float]:
        raise ValueError("two\nlines")

    monkeypatch.setattr(overlays, "overlay_measures", refuse)
    outcome = perform(Trial(kind="topology", n=4))
    assert outcome.row["error"] == "ValueError: two lines"
    assert not outcome.row["converged"]
    pa.Table.from_pylist([outcome.row | {"samples": []}], schema=RESULTS).validate(full=True)


# -- samples ---------------------------------------------------------------------------------


def test_degree_counts_every_other_node_once() -> None:
    """Several references to one node, under any labels, count once; a node's own do not count."""
    zero, one, two, three = (Label.nth(index) for index in range(4))
    state = SubscriberState(
        label=zero,
        left=Peer(one, "b"),
        right=Peer(two, "b"),
        ring=Peer(zero, "a"),
        shortcuts={one: "b", two: "c", three: None},
    )
    start = Snapshot(subscribers={"a": state, "b": SubscriberState(), "c": SubscriberState()})
    world = World(start, seed=0, config=ProtocolConfig())
    assert degrees(world) == [2, 0, 0]
    samples = Samples()
    samples(world)
    assert samples.degree_peak == samples.rows[0]["degree_max"] == 2
