"""The monitor of one topic: its history of scenes, its messages and their paths."""

import asyncio
import json

import pytest

from skipring.core.effects import Origin
from skipring.testing import Cluster
from skipring.view import monitor as monitor_module
from skipring.view.monitor import SHOWN_BYTES_MAX, DeliveryPaths, TopicMonitor, hop_event_of
from skipring.view.overview import Observer
from skipring.wire.rpc import Arrival
from tests.support.batches import batch_of
from tests.support.scenes import inside
from tests.view.observed import PATIENCE_S, monitored, observed


async def poll_until_changed(watching: TopicMonitor) -> None:
    """Poll until there is a new scene."""
    async with asyncio.timeout(PATIENCE_S):
        while await watching.poll() is None:
            pass


@inside(monitored, n=3)
async def test_unchanged_scene_is_not_repeated(cluster: Cluster, watching: TopicMonitor, /) -> None:
    first = await watching.poll()
    assert first is not None
    assert first.legitimate
    assert await watching.poll() is None
    cluster.kill("n01")
    await poll_until_changed(watching)
    assert watching.scene is not None
    assert watching.scene.number == first.number + 1
    assert [each.number for each in watching.timeline()] == [0, 1]
    kept = watching.scene_again(0)
    assert kept is not None
    assert json.loads(kept)["members"] == 3
    assert watching.scene_again(9) is None


@inside(observed, n=1)
async def test_unknown_topic_has_an_empty_scene(cluster: Cluster, observer: Observer, /) -> None:
    seen = await TopicMonitor(observer, "nothing").poll()
    assert seen is not None
    assert (seen.members, seen.legitimate, seen.nodes) == (0, False, ())


@inside(monitored, n=3)
async def test_messages_are_read_once_and_from_another_member_after_a_loss(
    cluster: Cluster, watching: TopicMonitor, /
) -> None:
    await cluster.publish("n00", b"one")
    await cluster.wait_healthy(timeout=PATIENCE_S)
    await watching.poll()
    assert [each.text for each in await watching.read()] == ["one"]
    assert await watching.read() == []
    cluster.kill("n02")  # of equal logs, the log of the last name is read
    await cluster.publish(cluster.nodes[0], b"two")
    new: list[str | None] = []
    async with asyncio.timeout(PATIENCE_S):
        while not new:
            await watching.poll()
            new = [each.text for each in await watching.read()]
    assert new == ["two"]
    assert [each.text for each in watching.messages] == ["one", "two"]


@inside(monitored, n=1)
async def test_reading_continues_after_a_member_has_lost_its_log(
    cluster: Cluster, watching: TopicMonitor, /
) -> None:
    for payload in (b"one", b"two"):
        await cluster.publish("n00", payload)
    await watching.poll()
    assert [each.text for each in await watching.read()] == ["one", "two"]
    cluster.kill("n00")
    await cluster.restart("n00")  # without a disk
    await cluster.publish("n00", b"three")
    await cluster.wait_healthy(timeout=PATIENCE_S)
    await watching.poll()
    assert [each.text for each in await watching.read()] == ["three"]


@inside(observed, n=1)
async def test_records_of_batches_are_listed_one_by_one_up_to_the_limit(
    cluster: Cluster, observer: Observer, /
) -> None:
    firsts = range(0, 270, 90)
    batches = [
        batch_of(
            *(b"%d" % number for number in range(first, first + 90)),
            publisher="p",
            first=first,
            topic=cluster.topic,
        )
        for first in firsts
    ]
    await observer.client.publish(cluster.topic, batches)
    watching = TopicMonitor(observer, cluster.topic)
    seen = await watching.poll()
    assert seen is not None
    assert seen.publications == 270
    found = await watching.read()
    assert [(each.seq, each.text) for each in found] == [(n, str(n)) for n in range(70, 270)]
    assert [each.id for each in found[-90:]] == [key.hex() for key in batches[-1].record_ids()]
    assert await watching.read() == []


@inside(monitored, n=1)
async def test_payload_is_shown_as_text_if_it_is_text(
    cluster: Cluster, watching: TopicMonitor, /
) -> None:
    texts: dict[bytes, str | None] = {
        b"": "",
        "grüße".encode(): "grüße",
        b"\xff\xfe": None,
        b"x" * (SHOWN_BYTES_MAX + 5): "x" * SHOWN_BYTES_MAX,
        b"x" * (SHOWN_BYTES_MAX - 1) + "ü".encode(): "x" * (SHOWN_BYTES_MAX - 1),
        b"\xff" + b"x" * SHOWN_BYTES_MAX: None,
    }
    for payload in texts:
        await cluster.publish("n00", payload)
    async with asyncio.timeout(PATIENCE_S):
        while len(watching.messages) < len(texts):
            await watching.poll()
            await watching.read()
    for message, (payload, text) in zip(watching.messages, texts.items(), strict=True):
        assert (message.text, message.bytes) == (text, len(payload))
        assert (message.base64 is None) == (text is not None)


# -- delivery paths ----------------------------------------------------------------------------

SPREAD = list(Origin).index(Origin.SPREAD)
OWN = list(Origin).index(Origin.OWN)


def arrival(
    time: int, sender: str | None, seq: int = 7, *, count: int = 1, fresh: int = 1, hops: int = 1
) -> Arrival:
    origin = SPREAD if sender is not None else OWN
    return Arrival(time, sender, hops, origin, count, fresh, "a", seq, 1_000)


def test_path_has_a_step_for_each_node_in_order_of_arrival() -> None:
    journeys = DeliveryPaths()
    journeys.add(
        [hop_event_of("c", arrival(3_000, "b", hops=2)), hop_event_of("b", arrival(2_000, "a"))]
    )
    journeys.add([hop_event_of("a", arrival(1_500, None, hops=0))])
    journey = journeys.find("a", 7, members=4)
    assert journey is not None
    steps = [(each.node, each.sender, each.hops, each.way) for each in journey.arrivals]
    assert steps == [("a", None, 0, "own"), ("b", "a", 1, "spread"), ("c", "b", 2, "spread")]
    assert [each.latency for each in journey.arrivals] == [0.5, 1.0, 2.0]
    assert (journey.reached, journey.members, journey.messages) == (3, 4, 2)
    assert (journey.duplicates, journey.published) == (0, 1.0)


def test_repeated_arrival_is_a_duplicate_and_a_message() -> None:
    journeys = DeliveryPaths()
    journeys.add([hop_event_of("b", arrival(2_000, "a"))])
    journeys.add([hop_event_of("b", arrival(2_500, "c", fresh=0))])
    journey = journeys.find("a", 7, members=2)
    assert journey is not None
    assert (journey.messages, journey.duplicates) == (2, 1)
    assert journey.arrivals[0].sender == "a"


def test_pack_adds_a_step_for_each_publication() -> None:
    journeys = DeliveryPaths()
    journeys.add([hop_event_of("b", arrival(2_000, "a", seq=10, count=3, fresh=3))])
    assert all(journeys.find("a", seq, 2) is not None for seq in (10, 11, 12))
    assert journeys.find("a", 13, 2) is None


def test_number_of_steps_is_limited_for_any_ring_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "STEPS_MAX", 10)
    journeys = DeliveryPaths()
    for seq in range(4):
        journeys.add(hop_event_of(f"n{number}", arrival(2_000, "a", seq)) for number in range(4))
    assert journeys.find("a", 0, members=4) is None
    last = journeys.find("a", 3, members=4)
    assert last is not None
    assert last.reached == 4
    found = [journeys.find("a", seq, members=4) for seq in range(4)]
    assert sum(path.reached for path in found if path is not None) <= 10
