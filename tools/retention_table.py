"""Table of retention in the simulator: every adversary with a policy and wrong clocks.

``python tools/retention_table.py [--sizes 5,16,64] [--seeds 3] [CODE ...]`` prints the table of
docs/simulation.md. All clocks are off by up to five minutes, one is ten years ahead and one ten
years behind. *Lost* counts the rows that the policy keeps of the initial rows of surviving
members and that a member lacks at the end; *kept wrongly* counts all other rows at a member.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from skipring.core.batches import RecordBatch
from skipring.core.retention.charter import Policy
from skipring.core.retention.rows import keep, stamp_of
from skipring.core.state import SubscriberState
from skipring.sim.engine import World
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.world.adversaries import ADVERSARIES
from skipring.world.adversaries.retention_states import AGE, AGE_S, NOW
from skipring.world.retained_rows import final_charter, retention_of
from skipring.world.snapshot import Snapshot

ROUNDS_MAX: Final = 500
# A member that gets the charter as a new publication applies it after 600 s, 120 rounds.
CLOCKS: Final = {"off_s": 300.0, "broken": True, "round_s": 5.0}
# A topic of the older adversaries: their publications have no time, and no keys.
POLICY: Final = {"max_count": 20, "max_age_s": AGE_S}


class Outcome(NamedTuple):
    """Result of one run."""

    rounds: int | None  # until every member holds what the policy keeps; None: never
    is_closed: bool
    lost: int
    surplus: int


def run(code: str, n: int, seed: int) -> Outcome:
    """Run an adversary with a policy and wrong clocks."""
    values = {"adversary": code, "n": n, "seed": seed, "max_rounds": ROUNDS_MAX, "clocks": CLOCKS}
    is_retained = code.startswith("A5")
    scenario = make_scenario(values | ({} if is_retained else {"policy": POLICY}))
    start = scenario.start()
    simulation = Simulation(scenario)
    report = simulation.run()
    lost, surplus = differences(start, simulation.world)
    return Outcome(
        report.rounds_publications if report.converged else None,
        bool(report.closure_ok),
        lost,
        surplus,
    )


def differences(start: Snapshot, world: World) -> tuple[int, int]:
    """Return the rows that members lack at the end, and those that they hold wrongly."""
    members = {node: each for node, each in world.subscribers.items() if each.wants}
    known = [found for each in members.values() if (found := retention_of(each)) is not None]
    acting, floors = known[0].acting, known[0].floors.stamps
    policy = acting[0].policy if acting is not None else Policy()
    given = [start.subscribers[node] for node in members if node in start.subscribers]
    rows = {each.id: each for state in given for each in taught(state, floors.tombstones)}
    sound = [each for each in rows.values() if is_sound(each, world.topic)]
    kept = {each.id for each in keep(sound, policy, floors, final_charter(known))}
    flying = {
        each.id: each
        for machine in members.values()
        for each in machine.batches()
        if each.id not in rows
    }
    lost = surplus = 0
    for machine in members.values():
        held = set(machine.trie().keys())
        lost += len(kept - held)
        surplus += len(held - kept - flying.keys())
    return lost, surplus


def taught(state: SubscriberState, floor: int) -> Iterator[RecordBatch]:
    """Yield the rows that a member may teach: a stale one withholds those below a floor."""
    terms = state.memory.terms if state.memory is not None else None
    is_stale = terms is not None and terms.last_confirmed <= NOW - AGE
    for batch in state.publications:
        if not is_stale or not is_sound(batch, "") or stamp_of(batch.records()) >= floor:
            yield batch


def is_sound(batch: RecordBatch, topic: str) -> bool:
    """Return True if a batch can be read, is not from the future and, in a topic, genuine."""
    try:
        records = batch.records()
    except ValueError:
        return False
    is_genuine = not topic or batch.is_genuine(topic)
    return is_genuine and stamp_of(records) < NOW + AGE


def table_lines(codes: Sequence[str], sizes: Sequence[int], seeds: int) -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    yield (
        "| adversary | "
        + " | ".join(f"rounds, n = {n}" for n in sizes)
        + " | closed | lost | kept wrongly |"
    )
    yield "|" + "---|" * (len(sizes) + 4)
    for code in codes:
        found = {n: [run(code, n, seed) for seed in range(seeds)] for n in sizes}
        runs = [each for outcomes in found.values() for each in outcomes]
        cells = [code, *(rounds_text(outcomes) for outcomes in found.values())]
        cells += [f"{sum(each.is_closed for each in runs)} of {len(runs)}"]
        cells += [str(sum(each.lost for each in runs)), str(sum(each.surplus for each in runs))]
        yield f"| {' | '.join(cells)} |"


def rounds_text(outcomes: Sequence[Outcome]) -> str:
    """Return the range of rounds, or the number of runs that did not converge."""
    rounds = [each.rounds for each in outcomes if each.rounds is not None]
    if len(rounds) < len(outcomes):
        return f"{len(outcomes) - len(rounds)} never"
    return f"{min(rounds)}-{max(rounds)}" if min(rounds) < max(rounds) else str(rounds[0])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("codes", nargs="*", metavar="CODE", default=list(ADVERSARIES))
    parser.add_argument("--sizes", default="5,16,64")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    for line in table_lines(given.codes, sizes, given.seeds):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
