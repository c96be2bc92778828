"""The overview of all topics and supervisors."""

import asyncio
from random import Random

import pytest
from msgspec.structs import replace

from skipring.admin.inspector import Inspector
from skipring.core.events import Overwritten
from skipring.core.state import SupervisorState
from skipring.errors import SkipringError, UnreachableError
from skipring.node import supervisor_host as supervisor_host_module
from skipring.node.settings import NodeSettings
from skipring.node.supervisor_host import SupervisorHost
from skipring.testing import Cluster
from skipring.view.overview import (
    REQUESTS_BOUND,
    WINDOW_TICKS,
    Observer,
    Pace,
    TopicRow,
    differing,
    most_common,
    requests_max,
)
from tests.support.scenes import in_loop, inside
from tests.view.observed import PATIENCE_S, observed


def test_pace_is_the_growth_over_its_window() -> None:
    pace = Pace(window=10)
    assert pace.add(5, at=0) == 0
    assert pace.add(9, at=2) == 2
    assert pace.add(9, at=4) == 1
    assert pace.add(9, at=20) == 0  # growth before the window does not count any more


def test_pace_starts_again_after_a_restart() -> None:
    pace = Pace(window=10)
    pace.add(100, at=50)
    assert pace.add(3, at=1) == 0
    assert pace.add(5, at=2) == 2


@pytest.mark.parametrize("ticks", [1, 2, 5, WINDOW_TICKS])
def test_requests_of_a_legitimate_pair_stay_below_the_maximum(ticks: int) -> None:
    rng = Random(ticks)
    limit = requests_max([ticks])
    for _ in range(2000):  # labels 0 and 1 ask with probability 1/2 and 1/4 (decision 0012)
        asked = sum((rng.random() < 1 / 2) + (rng.random() < 1 / 4) for _ in range(ticks))
        assert asked / ticks <= limit


def test_twice_the_requests_of_legitimate_rings_exceed_the_maximum_in_a_full_window() -> None:
    assert REQUESTS_BOUND < requests_max([WINDOW_TICKS]) < 2 * REQUESTS_BOUND
    assert requests_max([WINDOW_TICKS] * 16) < 16 * 1.3 * REQUESTS_BOUND


@inside(observed, n=2)
async def test_healthy_ring_of_two_nodes_never_exceeds_the_maximum(
    cluster: Cluster, observer: Observer, /
) -> None:
    (row,) = (await observer.overview()).supervisors
    end = row.ticks + WINDOW_TICKS
    async with asyncio.timeout(PATIENCE_S):
        while row.ticks < end:
            (row,) = (await observer.overview()).supervisors
            assert row.requests <= row.requests_max


def test_nodes_whose_root_differs_from_the_majority_are_listed() -> None:
    roots = {"a": b"1", "b": b"2", "c": b"1"}
    assert most_common(roots.values()) == b"1"
    assert list(differing(roots)) == ["b"]
    assert list(differing({})) == []


@inside(observed, n=4)
async def test_topic_is_listed_with_members_publications_and_lag(
    cluster: Cluster, observer: Observer, /
) -> None:
    await cluster.publish("n00", b"x")
    await cluster.wait_healthy(timeout=PATIENCE_S)
    (topic,) = (await observer.overview()).topics
    assert (topic.topic, topic.members, topic.publications) == ("news", 4, 1)
    assert (topic.lag, topic.roots, topic.differs) == (0, 1, ())
    assert topic.is_legitimate
    with cluster.partition(["n00"], ["n01", "n02", "n03"]):
        await cluster.publish("n00", b"not delivered")
        (topic,) = (await observer.overview()).topics
    assert (topic.lag, topic.roots, topic.differs) == (1, 2, ("n00",))


@inside(observed, n=2, supervisors=3)
async def test_every_supervisor_is_listed_with_its_topics(
    cluster: Cluster, observer: Observer, /
) -> None:
    for number in range(12):
        cluster.node("n00").subscribe(f"t{number}")
    await cluster.wait_healthy(timeout=PATIENCE_S)
    seen = await observer.overview()
    while len(seen.topics) < 13 or not all(row.ticks for row in seen.supervisors):
        seen = await observer.overview()
    assert {row.topic for row in seen.topics} == {"news", *(f"t{k}" for k in range(12))}
    assert seen.topics[0].topic == "news"  # the largest first
    assert sum(row.topics for row in seen.supervisors) == 13
    assert sum(row.members for row in seen.supervisors) == 14
    assert all(row.answers for row in seen.supervisors)


@inside(observed, n=3)
async def test_last_overview_stays_while_the_supervisor_is_away_and_after_its_data_loss(
    cluster: Cluster, observer: Observer, /
) -> None:
    await observer.overview()
    await cluster.stop_supervisor()
    seen = await observer.overview()
    assert [row.answers for row in seen.supervisors] == [False]
    assert [(row.topic, row.members) for row in seen.topics] == [("news", 3)]
    await cluster.start_supervisor(lose_data=True)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = await observer.overview()
            assert [(row.topic, row.members) for row in seen.topics] == [("news", 3)]
            if seen.supervisors[0].answers and seen.topics[0].is_legitimate:
                break
            await asyncio.sleep(0.05)


@in_loop
async def test_missing_supervisor_is_reported() -> None:
    async with Observer(["127.0.0.1:9"]) as observer:
        with pytest.raises(UnreachableError, match=r"nothing listens on 127\.0\.0\.1:9"):
            await observer.overview()


async def until_topics(observer: Observer, topics: set[str]) -> None:
    """Poll until exactly these topics are listed."""
    async with asyncio.timeout(PATIENCE_S):
        while {each.topic for each in (await observer.overview()).topics} != topics:
            pass


@inside(observed, n=1)
async def test_all_members_of_a_supervisor_with_many_topics_are_counted(
    cluster: Cluster, observer: Observer, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_host_module, "TOPICS_IN_A_PAGE", 2)
    for number in range(4):
        cluster.node("n00").subscribe(f"t{number}")
    await until_topics(observer, {"news", "t0", "t1", "t2", "t3"})
    (row,) = (await observer.overview()).supervisors
    assert (row.topics, row.members) == (5, 5)


def listed_by_supervisor(observer: Observer) -> set[str]:
    statuses = [status for status in observer.statuses.values() if status is not None]
    return {each.topic for status in statuses for each in status.topics}


@inside(observed, n=1)
async def test_ended_topic_is_forgotten_by_observer_and_supervisor(
    cluster: Cluster, observer: Observer, /
) -> None:
    cluster.node("n00").subscribe("short")
    await until_topics(observer, {"news", "short"})
    assert observer.requests.keys() == {"news", "short"}
    await cluster.node("n00").unsubscribe("short", PATIENCE_S)
    await until_topics(observer, {"news"})
    async with asyncio.timeout(PATIENCE_S):
        while listed_by_supervisor(observer) | observer.requests.keys() != {"news"}:
            await observer.overview()


@inside(observed, n=1)
async def test_failed_topic_does_not_hide_the_others(
    cluster: Cluster, observer: Observer, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect = Inspector.inspect

    async def inspect_all_but_one(self: Inspector, *args: object) -> object:
        if self._topic == "endless":
            raise SkipringError("the supervisor's database has no end")
        return await inspect(self, *args)  # type: ignore[arg-type]

    cluster.node("n00").subscribe("endless")
    await until_topics(observer, {"news", "endless"})
    monkeypatch.setattr(Inspector, "inspect", inspect_all_but_one)
    seen = await observer.overview()
    assert [each.topic for each in seen.topics] == ["news"]
    assert seen.unlisted == 1


@in_loop
async def test_refused_topic_does_not_mark_its_supervisor_unreachable() -> None:
    settings = NodeSettings(allowed_topics=("news",), tick_s=0.05)
    server = await SupervisorHost(settings, rng=Random(1)).start("127.0.0.1", 0)
    try:
        async with Observer([server.address]) as observer:
            await observer.overview()
            with pytest.raises(UnreachableError, match="does not serve"):
                await observer.inspect("secret")
            assert observer.statuses[server.address] is not None
    finally:
        await server.close()


@inside(observed, n=3)
async def test_ring_just_forgotten_by_its_supervisor_is_still_seen(
    cluster: Cluster, observer: Observer, /
) -> None:
    await observer.inspect("news")
    cluster.supervisor().dispatch("news", Overwritten(SupervisorState()))
    seen = await observer.inspect("news")
    assert seen is not None
    assert seen.statuses.keys() == {"n00", "n01", "n02"}


@pytest.mark.parametrize(
    ("changes", "is_healthy"),
    [({}, True), ({"roots": 2}, False), ({"wrong": 1}, False), ({"members": 0}, False)],
    ids=["in-order", "members-differ", "wrong-ring", "no-members"],
)
def test_topic_is_healthy_if_ring_and_publications_are(
    changes: dict[str, int], is_healthy: bool
) -> None:
    row = TopicRow(
        topic="news", members=4, publications=9, rate=0.0, lag=0, roots=1, differs=(), wrong=0
    )
    assert replace(row, **changes).is_healthy == is_healthy
