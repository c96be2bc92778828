"""What ``skipring bench sim --publications`` measures, in small rings."""

from __future__ import annotations

from random import Random

import pytest

from skipring.bench import publications as bench
from skipring.bench.publications import (
    PER_INTERVAL,
    REPAIRS,
    WEATHERS,
    Network,
    Reach,
    Weather,
    healing_table,
    network,
    one_alone,
    one_new,
    repair,
    repair_table,
    scattered,
    settle,
    silence,
    silence_table,
    spread,
    spreading_table,
)
from skipring.core.config import ProtocolConfig, Spread
from skipring.core.effects import Origin
from skipring.core.messages import CheckTrie, IHave, PublishNew, Want
from skipring.core.topology import levels
from skipring.sim.engine import World
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import ADVERSARIES
from skipring.world.legitimacy import explicit_state, has_all_publications, is_legitimate
from tests.support.conversations import standing_ring

N = 16
CALM = Weather("calm", intervals=3)
STORM = Weather("storm", churn=0.05, intervals=12)
HEALING = Weather("healing", adversary="A05")


def spread_only(way: Spread) -> ProtocolConfig:
    return ProtocolConfig(spread=way, repairs=False)


def cells(lines: list[str]) -> list[list[str]]:
    """The rows of a table, its header first."""
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return [row for row in rows if not row[0].startswith("---")]


# -- repair ------------------------------------------------------------------------------------


def test_in_one_start_all_but_one_publication_are_known_to_all() -> None:
    start = one_new(N, seed=1)
    counts = sorted(len(state.publications) for state in start.subscribers.values())
    assert counts == [bench.SCATTERED] * (N - 1) + [bench.SCATTERED + 1]
    assert is_legitimate(start)


def test_in_the_other_start_each_publication_is_at_one_member() -> None:
    start = scattered(N, seed=1)
    assert sum(len(s.publications) for s in start.subscribers.values()) == bench.SCATTERED
    assert is_legitimate(start)


@pytest.mark.parametrize("name", list(REPAIRS))
@pytest.mark.parametrize("place", [one_alone, one_new, scattered])
def test_every_way_of_repair_comes_to_an_end(name: str, place: bench.Placing) -> None:
    found = repair(place(N, 0), REPAIRS[name], seed=0)
    assert 0 < found.rounds < 100
    assert found.messages >= 1


def test_what_is_equal_needs_no_round() -> None:
    assert repair(standing_ring(4), ProtocolConfig(), seed=0).rounds == 0


def test_what_is_lost_for_speed_would_have_changed_nothing() -> None:
    """The ring is legitimate: it is the same after the repair, without a message of its own."""
    start = scattered(N, seed=2)
    faults = (bench.OnlyPublications(),)
    world = World(start, seed=2, config=REPAIRS["R16, batched"], faults=faults)
    before = explicit_state(world)
    run_rounds(world, RandomOrder(), 30)
    assert explicit_state(world) == before
    assert has_all_publications(world)


def test_the_table_of_repairs_has_a_row_for_each_start_and_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "SCATTERED", 5)
    header, *rows = cells(list(repair_table(sizes=(4, 8), seeds=2)))
    assert header == ["publications", "n", "2 log2 n", *REPAIRS]
    assert [row[1] for row in rows] == ["4", "8"] * 3
    for row in rows:
        for cell in row[3:]:
            middle, worst = (int(part) for part in cell.split(" / ")[0].split(", "))
            assert 0 < middle <= worst


# -- spreading ---------------------------------------------------------------------------------


def test_in_calm_weather_every_way_reaches_all() -> None:
    for way in Spread:
        running = spread(CALM, N, spread_only(way), seed=0)
        assert running.reach.publications == 3 * PER_INTERVAL
        assert running.reach.share == running.reach.complete_share == 1.0
        assert running.world.deliveries.by_origin[Origin.SPREAD] == 3 * PER_INTERVAL * (N - 1)


def test_in_calm_weather_the_flood_takes_4n_minus_6_messages_and_the_others_n_minus_1() -> None:
    sent = {way: spread(CALM, N, spread_only(way), seed=0).world.sent[PublishNew] for way in Spread}
    count = 3 * PER_INTERVAL
    assert sent[Spread.FLOOD] == count * (4 * N - 6)
    assert sent[Spread.TREE] == sent[Spread.ADAPTIVE] == count * (N - 1)


def test_only_the_adaptive_spread_sends_ids_and_nobody_asks_in_calm_weather() -> None:
    for way in Spread:
        world = spread(CALM, N, spread_only(way), seed=0).world
        assert (world.sent[IHave] > 0) is (way is Spread.ADAPTIVE)
        assert world.sent[Want] == 0


def test_nothing_that_spreads_is_left_on_its_way_after_an_interval() -> None:
    running = network(STORM, N, spread_only(Spread.ADAPTIVE), seed=0)
    for _ in range(10):
        running.run_interval(2)
        kinds = {type(parcel.message) for parcel in running.world.channels}
        assert not kinds & bench.SPREADING
        assert not any(machine.has_to_flush for machine in running.world.subscribers.values())


@pytest.mark.parametrize("weather", [STORM, HEALING])
def test_the_same_befalls_the_ring_however_publications_spread(weather: Weather) -> None:
    runs = [spread(weather, N, spread_only(way), seed=3) for way in Spread]
    assert len({run.world.round for run in runs}) == 1
    assert len({explicit_state(run.world) for run in runs}) == 1
    assert len({(run.reach.publications, run.reach.pairs) for run in runs}) == 1


def test_in_a_storm_the_tree_reaches_less_than_the_adaptive_spread() -> None:
    reach = {
        way: spread(STORM, 32, spread_only(way), seed=0).reach.share
        for way in (Spread.TREE, Spread.ADAPTIVE)
    }
    assert reach[Spread.TREE] < reach[Spread.ADAPTIVE] <= 1.0


def test_healing_is_over_when_the_ring_is_legitimate() -> None:
    running = spread(HEALING, N, spread_only(Spread.ADAPTIVE), seed=0)
    assert is_legitimate(running.world)
    assert running.reach.publications == PER_INTERVAL * running.world.round > 0


def test_only_those_with_a_place_count_as_members() -> None:
    start = ADVERSARIES["A00"].build(N, Random(0))
    running = Network(World(start, seed=0, config=spread_only(Spread.FLOOD)), (), Random(0))
    assert running.members() == []
    running.run_interval(0)
    running.run_interval(0)
    assert running.members() == sorted(start.subscribers)


def test_reach_counts_pairs_and_publications_that_came_to_all() -> None:
    reach = Reach()
    assert (reach.share, reach.complete_share) == (1.0, 1.0)
    reach.note(3, 4)
    reach.note(4, 4)
    other = Reach()
    other.note(0, 4)
    reach.add(other)
    assert (reach.publications, reach.complete, reach.pairs, reach.reached) == (3, 1, 12, 7)
    assert reach.share == pytest.approx(7 / 12)
    assert reach.complete_share == pytest.approx(1 / 3)


def test_the_table_of_spreading_has_a_row_for_each_weather_and_way() -> None:
    header, *rows = cells(list(spreading_table(N, (CALM, HEALING))))
    assert len({len(row) for row in (header, *rows)}) == 1
    assert [row[:2] for row in rows] == [
        [weather.title, way] for weather in (CALM, HEALING) for way in ("flood", "tree", "adaptive")
    ]
    for row in rows:
        reached, complete = (float(cell.removesuffix(" %")) for cell in row[3:5])
        assert 0 <= complete <= 100
        assert 0 < reached <= 100
        data, duplicates, ids = (float(cell) for cell in row[5:8])
        assert data >= 1.0
        assert duplicates <= data
        assert ids >= 0
        mean, most = row[8].split(", ")
        assert 1 <= float(mean) <= int(most)
    assert {row[3] for row in rows[:3]} == {"100.00 %"}
    assert max(int(row[8].split(", ")[1]) for row in rows[:3]) <= 2 * levels(N)


def test_the_weathers_are_those_that_are_spoken_of() -> None:
    assert [weather.churn for weather in WEATHERS] == [0, 1e-4, 1e-3, 1e-2, 0, 0]
    assert [weather.adversary for weather in WEATHERS] == [None] * 4 + ["A05", "A15"]


# -- in the end ----------------------------------------------------------------------------------


def test_with_repair_everybody_has_everything_in_the_end() -> None:
    running = spread(STORM, N, ProtocolConfig(), seed=0)
    ticks = settle(running)
    assert ticks is not None
    assert ticks < 50
    assert has_all_publications(running.world)


def test_the_table_of_healing_says_how_long_it_took() -> None:
    header, *rows = cells(list(healing_table(N, (CALM, STORM))))
    assert header == ["weather", "published", "by spreading", "by repair", "ticks until all"]
    assert rows[0] == ["calm", str(3 * PER_INTERVAL), str(3 * PER_INTERVAL * (N - 1)), "0", "0"]
    assert rows[1][0] == "storm"
    assert int(rows[1][4]) < 50


def test_what_never_comes_is_said_to_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROUNDS_MAX", 3)
    running = network(CALM, N, spread_only(Spread.TREE), seed=0)
    running.world.publish("n0000", b"lost")
    running.world.channels.clear()
    assert settle(running) is None


# -- silence -------------------------------------------------------------------------------------


def test_a_ring_where_all_have_all_sends_one_check_a_node_and_round_and_no_more() -> None:
    assert silence(N, 20, seed=0) == {CheckTrie: 1.0}


def test_the_table_of_silence_names_what_is_sent() -> None:
    assert cells(list(silence_table(8, 10)))[1:] == [["CheckTrie", "1.0000"]]


def test_the_tables_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("repair_table", "spreading_table", "healing_table", "silence_table"):
        monkeypatch.setattr(bench, name, lambda name=name: iter([name]))
    assert [line for line in bench.tables() if line] == [
        "repair_table",
        "spreading_table",
        "healing_table",
        "silence_table",
    ]
