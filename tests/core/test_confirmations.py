"""Confirmations of ring neighbours: asked with doubling intervals until all are in sync (T19)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig
from skipring.core.confirmations import SyncConfirmations
from skipring.core.messages import CheckTrie, TrieEqual
from skipring.core.state import SyncState
from skipring.sim.engine import World
from skipring.sim.schedulers import RandomOrder, run_rounds
from tests.support.conversations import standing_ring

LIVE = ProtocolConfig.live()


def asked(sync: SyncConfirmations, ticks: int, *neighbours: str) -> list[int]:
    """Return the ticks in which the neighbours are asked."""
    return [tick for tick in range(ticks) if sync.on_tick(neighbours)]


def test_neighbours_are_asked_with_doubling_intervals_until_all_confirm() -> None:
    sync = SyncConfirmations(LIVE)
    assert asked(sync, 16, "a", "b") == [0, 1, 3, 7, 15]
    sync.add("a")
    assert asked(sync, 40, "a", "b") != []
    sync.add("b")
    assert asked(sync, 200, "a", "b") == []


def test_repair_and_new_neighbours_start_again() -> None:
    sync = SyncConfirmations(LIVE)
    sync.add("a")
    assert asked(sync, 1, "a") == []
    sync.reset()
    assert asked(sync, 1, "a") == [0]
    sync.add("a")
    assert asked(sync, 2, "a", "c") == [0]
    assert asked(sync, 1) == []
    assert sync.nodes == frozenset()


@pytest.mark.parametrize("ask_ticks", [-(1 << 40), 0, 1 << 40])
@pytest.mark.parametrize("period", [-(1 << 40), 0, 1 << 40])
def test_corrupted_counters_delay_a_question_by_64_ticks_at_most(
    ask_ticks: int, period: int
) -> None:
    sync = SyncConfirmations(LIVE)
    sync.load(SyncState(confirmed=("gone",), ask_ticks=ask_ticks, period=period))
    assert asked(sync, LIVE.quiet_ticks_max + 1, "a") != []
    assert sync.state().confirmed == ()


@pytest.mark.parametrize("confirms", [True, False])
def test_members_of_a_ring_confirm_each_other_if_configured(confirms: bool) -> None:
    config = replace(LIVE, confirms_sync=confirms, repairs=False)
    world = World(standing_ring("abcd"), seed=0, config=config)
    run_rounds(world, RandomOrder(), 6)
    for machine in world.subscribers.values():
        assert (machine.in_sync == set(machine.ring_neighbours())) is confirms
    assert (world.sent[CheckTrie] > 0) is confirms
    assert (world.sent[TrieEqual] > 0) is confirms
