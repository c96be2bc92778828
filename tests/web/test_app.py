"""Answers of the dashboard about a live ring."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import pytest

from skipring.admin.diagnosis import REPAIRS
from skipring.core.topology import levels, ring_edges, shortcut_edges
from skipring.node.settings import NodeSettings
from skipring.node.supervisor_host import SupervisorHost
from skipring.testing import Cluster
from skipring.view import monitor as monitor_module
from skipring.web import events as events_module
from skipring.web.server import Dashboard
from tests.support.scenes import in_loop, inside
from tests.web.asking import PATIENCE_S, Visitor

N = 8
UNUSED = ("127.0.0.1:9",)  # no supervisor listens here: the dashboard reports it and serves


# Slow enough to see a violation before its repair.
SLOW_TICK_S = 0.3


@asynccontextmanager
async def watched(
    n: int = N, *, chaos: bool = False, tick_s: float | None = None
) -> AsyncIterator[tuple[Visitor, Cluster]]:
    """Yield a visitor of the dashboard of a healthy ring, and the ring."""
    async with Cluster(n=n, tick_s=tick_s) as cluster:
        await cluster.wait_healthy(timeout=PATIENCE_S)
        supervisors = cluster.url.removeprefix("skipring://").split(",")
        async with Dashboard(supervisors, topic="news", chaos=chaos) as dashboard:
            visitor = Visitor(dashboard)
            await visitor.enter()
            yield visitor, cluster


async def until(
    visitor: Visitor, event: str, holds: Callable[[Any], bool] = bool, topic: str | None = "news"
) -> Any:  # noqa: ANN401  (JSON is anything)
    """Return the first matching event of a kind."""
    async with visitor.events(topic) as events:
        async for name, value in events:
            if name == event and holds(value):
                return value
    raise AssertionError("the stream has ended")


@inside(watched)
async def test_scene_shows_the_ring_of_the_paper(visitor: Visitor, cluster: Cluster, /) -> None:
    seen = await until(visitor, "scene", lambda each: each["legitimate"])
    states = cluster.snapshot().subscribers
    assert {each["node"]: each["label"] for each in seen["nodes"]} == {
        node: str(state.label) for node, state in states.items()
    }
    places = {each["node"]: each["turn"] for each in seen["nodes"]}
    assert sorted(places.values()) == [k / N for k in range(N)]
    label = {node: state.label for node, state in states.items()}
    drawn = {
        kind: {
            tuple(sorted((label[each["a"]], label[each["b"]])))
            for each in seen["edges"]
            if each["kind"] == kind
        }
        for kind in ("ring", "shortcut")
    }
    assert drawn["ring"] == ring_edges(N)
    assert drawn["shortcut"] == shortcut_edges(N) - ring_edges(N)
    assert {each["state"] for each in seen["edges"]} == {"right"}
    assert {each["level"] for each in seen["edges"] if each["kind"] == "ring"} == {levels(N)}
    assert len(seen["tree"]) == N - 1
    assert len({child for _, child in seen["tree"]}) == N - 1
    assert seen["wrong"] == dict.fromkeys(map(str, REPAIRS), 0)
    assert seen["supervisor"]["answers"] is True
    assert seen["supervisor"]["conditions"] == {"i": 0, "ii": 0, "iii": 0, "iv": 0}


@inside(watched)
async def test_publication_from_the_page_reaches_every_member_and_its_path_is_shown(
    visitor: Visitor, cluster: Cluster, /
) -> None:
    await until(visitor, "scene", lambda each: each["legitimate"])
    async with visitor.events("news") as events:
        sent = await visitor.post("/api/publish?topic=news", {"text": "grüße", "key": "k"})
        assert sent.status == 200
        said = sent.value
        came: set[str] = set()
        async for name, value in events:
            if name == "pulses":
                came |= {
                    each["to"]
                    for each in value["pulses"]
                    if (each["publisher"], each["seq"]) == (said["publisher"], said["seq"])
                }
            if len(came) == N:
                break
    await cluster.wait_healthy(timeout=PATIENCE_S)
    assert cluster.payloads("n03") == ["grüße".encode()]
    query = f"topic=news&publisher={said['publisher']}&seq={said['seq']}"
    journey = (await visitor.get(f"/api/journey?{query}")).value
    assert (journey["reached"], journey["members"]) == (N, N)
    assert journey["messages"] == N - 1 + journey["duplicates"]
    first, *others = journey["arrivals"]
    assert (first["way"], first["from"], first["hops"]) == ("own", None, 0)
    hops = {each["node"]: each["hops"] for each in journey["arrivals"]}
    assert all(each["hops"] == hops[each["from"]] + 1 for each in others)
    assert all(each["latency"] >= 0 for each in journey["arrivals"])
    messages = (await visitor.get("/api/messages?topic=news")).value["messages"]
    if not messages:  # they are read with the next scene
        await until(visitor, "messages")
        messages = (await visitor.get("/api/messages?topic=news")).value["messages"]
    (message,) = messages
    assert (message["text"], message["key"], message["id"]) == ("grüße", "k", said["id"])


@pytest.mark.heavy
@inside(watched, tick_s=SLOW_TICK_S)
async def test_killed_node_is_shown_dead_then_removed_and_stays_in_the_timeline(
    visitor: Visitor, cluster: Cluster, /
) -> None:
    await until(visitor, "scene", lambda each: each["legitimate"])
    cluster.kill("n03")
    hurt = await until(
        visitor, "scene", lambda each: any(x["mark"] == "dead" for x in each["nodes"])
    )
    (dead,) = (each for each in hurt["nodes"] if each["mark"] == "dead")
    assert dead["node"] == "n03"
    assert dead["reasons"][0].startswith("it does not answer")
    assert hurt["legitimate"] is False
    healed = await until(visitor, "scene", lambda each: each["legitimate"])
    assert "n03" not in {each["node"] for each in healed["nodes"]}
    samples = (await visitor.get("/api/timeline?topic=news")).value["samples"]
    assert [each["number"] for each in samples] == sorted(each["number"] for each in samples)
    assert not all(each["legitimate"] for each in samples)
    again = await visitor.get(f"/api/scene?topic=news&number={hurt['number']}")
    assert again.value == hurt


@pytest.mark.heavy
@inside(watched, chaos=True, tick_s=1.0)
async def test_damage_is_applied_with_chaos_enabled_and_violations_have_reasons(
    visitor: Visitor, /
) -> None:
    await until(visitor, "scene", lambda each: each["legitimate"])
    async with visitor.events("news") as events:
        damage = {"damage": "adversary", "code": "A15"}
        done = await visitor.post("/api/chaos?topic=news", damage)
        assert done.status == 200, done.body
        hurt = False
        async for name, value in events:
            if name != "scene":
                continue
            wrong = [each for each in value["nodes"] if each["mark"] in ("label", "edges")]
            if wrong:
                assert all(each["reasons"] for each in wrong)
                lines = [each for each in value["edges"] if each["state"] != "right"]
                assert all(each["reason"] for each in lines)
                hurt = True
            if hurt and value["legitimate"]:
                break


@inside(watched, n=2, chaos=True)
async def test_impossible_damage_is_refused_with_a_reason(
    visitor: Visitor, cluster: Cluster, /
) -> None:
    refusals: tuple[tuple[object, str], ...] = (
        ({"damage": "kill"}, "names no node to kill"),
        ({"damage": "kill", "nodes": ["missing"]}, "missing"),
        ({"damage": "adversary", "code": "A99"}, "A99"),
        ({"damage": "everything"}, "invalid request"),
        ([], "invalid request"),
    )
    for damage, why in refusals:
        answer = await visitor.post("/api/chaos?topic=news", damage)
        assert answer.status == 400
        assert why in answer.value["error"]
    assert len(cluster.nodes) == 2


@inside(watched)
async def test_overview_lists_topic_and_supervisor(visitor: Visitor, cluster: Cluster, /) -> None:
    await cluster.publish("n00", b"x")
    seen = await until(
        visitor,
        "overview",
        lambda each: any(row["publications"] and row["healthy"] for row in each["topics"]),
    )
    (topic,), (supervisor,) = seen["topics"], seen["supervisors"]
    assert (topic["topic"], topic["members"]) == ("news", N)
    assert (supervisor["answers"], supervisor["topics"], supervisor["members"]) == (True, 1, N)


@inside(watched)
async def test_ring_without_supervisor_is_shown_and_accepts_publications(
    visitor: Visitor, cluster: Cluster, /
) -> None:
    await until(visitor, "scene", lambda each: each["legitimate"])
    await cluster.stop_supervisor()
    trouble = await until(visitor, "trouble", lambda each: each["text"] is not None)
    assert "still reach all members" in trouble["text"]
    await cluster.publish("n01", b"all the same")
    seen = await until(visitor, "scene", lambda each: each["publications"] == 1)
    assert seen["members"] == N
    await cluster.start_supervisor()
    await until(visitor, "trouble", lambda each: each["text"] is None)


@inside(watched, n=2)
async def test_node_is_explained_by_its_change_log(visitor: Visitor, /) -> None:
    told = (await visitor.get("/api/node?topic=news&node=n01")).value
    assert told["standing"].startswith("a member under label")
    assert {"label", "member"} <= {each["field"] for each in told["journal"]}
    answer = await visitor.get("/api/node?topic=news&node=missing")
    assert answer.status == 400
    assert "no node 'missing' is known" in answer.value["error"]


@inside(watched, n=3)
async def test_node_explanation_names_missing_publications_without_supervisor(
    visitor: Visitor, cluster: Cluster, /
) -> None:
    await until(visitor, "scene", lambda each: each["legitimate"])
    await cluster.stop_supervisor()
    await until(visitor, "trouble", lambda each: each["text"] is not None)
    with cluster.partition(["n00"], ["n01", "n02"]):
        await cluster.publish("n00", b"not delivered")
        ahead = (await visitor.get("/api/node?topic=news&node=n00")).value
        told = (await visitor.get("/api/node?topic=news&node=n01")).value
    assert ahead["violations"] == []
    assert told["standing"].startswith("a member under label")
    assert told["journal"]
    (wrong,) = told["violations"]
    assert (wrong["layer"], wrong["text"]) == ("PUB", "n01 has 0 of 1 publications")
    assert "compare their tries" in wrong["repair"]


UNANSWERABLE = (
    ("/api/scene?topic=news&number=x", 400),
    ("/api/scene?topic=news&number=-1", 400),
    ("/api/scene?topic=news&number=" + "9" * 30, 400),
    ("/api/scene?topic=news&number=99999", 404),
    ("/api/scene?number=1", 400),
    ("/api/timeline", 400),
    ("/api/timeline?topic=" + "x" * 300, 400),
    ("/api/timeline?topic=%00", 400),
    ("/api/journey?topic=news&publisher=a&seq=1", 404),
    ("/api/nothing", 404),
)


@inside(watched, n=1)
async def test_unanswerable_request_is_refused_in_a_sentence(visitor: Visitor, /) -> None:
    for path, status in UNANSWERABLE:
        answer = await visitor.get(path)
        assert answer.status == status, path
        assert answer.value["error"]


@inside(watched, n=1)
async def test_invalid_publication_is_refused(visitor: Visitor, cluster: Cluster, /) -> None:
    origin = {"Origin": f"http://{visitor.address.netloc}"}
    long = b'{"text": "' + b"x" * (1 << 20) + b'"}'
    for body in (b"", b"nonsense", b"{}", b'{"text": 3}', long):
        answer = await visitor.ask("POST", "/api/publish?topic=news", body, origin)
        assert answer.status == 400, body[:20]
    assert cluster.payloads("n00") == []


@in_loop
async def test_excess_topic_or_page_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events_module, "PAGES_MAX", events_module.WATCHED_MAX + 1)
    async with Dashboard(UNUSED) as dashboard:
        visitor = Visitor(dashboard)
        await visitor.enter()
        async with AsyncExitStack() as stack:
            for number in range(events_module.WATCHED_MAX):
                await first_event(visitor, f"t{number}", stack)
            answer = await visitor.get("/api/events?topic=another")
            assert (answer.status, "close another page" in answer.value["error"]) == (409, True)
            await first_event(visitor, "t0", stack)
            answer = await visitor.get("/api/events?topic=t0")
            assert (answer.status, "pages are open" in answer.value["error"]) == (409, True)


async def first_event(visitor: Visitor, topic: str, stack: AsyncExitStack) -> None:
    """Open a stream and wait for its first event."""
    await anext(await stack.enter_async_context(visitor.events(topic)))


@inside(watched, n=2)
async def test_failing_poll_is_reported_and_watching_continues(visitor: Visitor, /) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("broken")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor_module, "make_topic_view", fail)
        trouble = await until(visitor, "trouble", lambda each: each["text"] is not None)
        assert "broken" in trouble["text"]
        assert (await visitor.get("/api/timeline?topic=news")).status == 200
    await until(visitor, "trouble", lambda each: each["text"] is None)
    await until(visitor, "scene", lambda each: each["legitimate"])


@in_loop
async def test_refused_topic_is_reported_and_its_supervisor_still_answers() -> None:
    settings = NodeSettings(allowed_topics=("news",), tick_s=0.05)
    supervisor = await SupervisorHost(settings, rng=Random(1)).start("127.0.0.1", 0)
    try:
        async with Dashboard([supervisor.address], topic="secret") as dashboard:
            visitor = Visitor(dashboard)
            await visitor.enter()
            trouble = await until(
                visitor, "trouble", lambda each: each["text"] is not None, "secret"
            )
            assert "does not serve 'secret'" in trouble["text"]
            seen = await until(visitor, "overview", topic=None)
            assert [each["answers"] for each in seen["supervisors"]] == [True]
    finally:
        await supervisor.close()
