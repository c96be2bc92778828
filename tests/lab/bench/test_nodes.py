"""Costs of one node, with small stores and few topics."""

import pytest

from skipring.lab.bench.nodes import idle_once, start_once
from skipring.lab.bench.servers import BATCH
from skipring.lab.bench.systems.large import BEAT_S


@pytest.mark.heavy
@pytest.mark.parametrize(("records", "batch"), [(2 * BATCH + 7, BATCH), (40, 1)])
def test_node_starts_with_all_batches_of_its_store(records: int, batch: int) -> None:
    found = start_once(records, batch)
    assert found["batches"] == -(-records // batch)
    assert 0 < found["cpu_s"] < found["wall_s"] + 1
    assert found["pause_ms"] <= 1000 * (found["wall_s"] + BEAT_S), "a pause is a part of the start"
    assert found["written_us_per_record"] > 0


@pytest.mark.heavy
def test_idle_member_of_several_rings_is_measured() -> None:
    found = idle_once(3, 0.0, 1.5)
    assert 0 < found["percent_of_core"] < 100
    assert abs(found["mib_beyond_first_topic"]) < 20
