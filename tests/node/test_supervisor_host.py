"""Host of a supervisor: limits, and its database on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipring.core import topics
from skipring.storage.supervisor_store import SupervisorStore
from skipring.testing import Cluster
from tests.support.connections import healthy_cluster
from tests.support.rings import until


async def test_supervisor_limits_the_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TOPICS_MAX", 2)
    async with Cluster(n=1) as cluster:
        node, supervisor = cluster.node("n00"), cluster.supervisor()
        node.subscribe("second")
        await until(lambda: len(supervisor.members()) == 2)
        node.subscribe("third")
        await until(lambda: "third" in node.refusals)
        assert node.refusals["third"] == "this supervisor has 2 topics, which is the limit"
        assert supervisor.members().keys() == {cluster.topic, "second"}
        assert supervisor.links.counts["too many topics"] > 0


async def test_supervisor_writes_its_database_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[str] = []
    save = SupervisorStore.save
    monkeypatch.setattr(
        SupervisorStore, "save", lambda store, *what: (saved.append(what[0]), save(store, *what))
    )
    async with healthy_cluster(n=3, data_dir=tmp_path) as cluster:
        ticker = cluster.supervisor().ticker
        saved_after = ticker.calls + 1
        await until(lambda: ticker.calls > saved_after)
        saved.clear()
        some_later = ticker.calls + 10
        await until(lambda: ticker.calls > some_later)
        assert saved == []
        await cluster.join()
        await cluster.wait_healthy()
        await until(lambda: saved != [])
    with SupervisorStore.open(tmp_path / "supervisor-0") as store:
        (state,) = store.load().values()
    assert len(state.database) == 4
