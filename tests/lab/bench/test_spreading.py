"""What ``skipring bench sim --publications`` says of spreading, in small rings."""

from random import Random

import pytest

from skipring.core.config import ProtocolConfig, Spread
from skipring.core.effects import Origin
from skipring.core.messages import IHave, PublishNew, Want
from skipring.core.topology import levels
from skipring.lab.bench import spreading as bench
from skipring.lab.bench.spreading import (
    PER_INTERVAL,
    SPREADING,
    WEATHERS,
    Network,
    Reach,
    Weather,
    healing_table,
    network,
    settle,
    spread,
    spreading_table,
)
from skipring.sim.engine import World
from skipring.world.adversaries import ADVERSARIES
from skipring.world.legitimacy import explicit_state, has_all_publications, is_legitimate
from tests.lab.bench.markdown import cells

N = 16
CALM = Weather("calm", intervals=3)
STORM = Weather("storm", churn=0.05, intervals=12)
HEALING = Weather("healing", adversary="A05")


def spread_only(way: Spread) -> ProtocolConfig:
    return ProtocolConfig(spread=way, repairs=False)


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
        assert not kinds & SPREADING
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
