"""What ``skipring bench sim --publications`` says of repair and of silence, in small rings."""

import pytest

from skipring.core.config import ProtocolConfig
from skipring.core.messages import CheckTrie
from skipring.lab.bench import repair as bench
from skipring.lab.bench.repair import (
    REPAIRS,
    OnlyPublications,
    Placing,
    one_alone,
    one_new,
    repair,
    repair_table,
    scattered,
    silence,
    silence_table,
)
from skipring.sim.engine import World
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.legitimacy import explicit_state, has_all_publications, is_legitimate
from tests.lab.bench.markdown import cells
from tests.support.conversations import standing_ring

N = 16


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
def test_every_way_of_repair_comes_to_an_end(name: str, place: Placing) -> None:
    found = repair(place(N, 0), REPAIRS[name], seed=0)
    assert 0 < found.rounds < 100
    assert found.messages >= 1


def test_what_is_equal_needs_no_round() -> None:
    assert repair(standing_ring(4), ProtocolConfig(), seed=0).rounds == 0


def test_what_is_lost_for_speed_would_have_changed_nothing() -> None:
    """The ring is legitimate: it is the same after the repair, without a message of its own."""
    start = scattered(N, seed=2)
    faults = (OnlyPublications(),)
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


def test_a_ring_where_all_have_all_sends_one_check_a_node_and_round_and_no_more() -> None:
    assert silence(N, 20, seed=0) == {CheckTrie: 1.0}


def test_the_table_of_silence_names_what_is_sent() -> None:
    assert cells(list(silence_table(8, 10)))[1:] == [["CheckTrie", "1.0000"]]
