"""The monitor of one topic: its history of scenes, and its messages."""

import asyncio
import json

import pytest

from skipring.testing import Cluster
from skipring.view import monitor as watcher
from skipring.view.monitor import SHOWN_BYTES_MAX, TopicMonitor
from skipring.view.overview import Observer
from tests.support.scenes import in_loop

PATIENCE_S = 30.0


def supervisors_of(cluster: Cluster) -> list[str]:
    return cluster.url.removeprefix("skipring://").split(",")


async def look_again(watching: TopicMonitor) -> None:
    """Poll until there is a new scene."""
    async with asyncio.timeout(PATIENCE_S):
        while await watching.poll() is None:
            pass


@in_loop
async def test_unchanged_scene_is_not_repeated() -> None:
    async with Cluster(n=3) as cluster:
        await cluster.wait_healthy(timeout=PATIENCE_S)
        async with Observer(supervisors_of(cluster)) as observer:
            watching = TopicMonitor(observer, "news")
            first = await watching.poll()
            assert first is not None
            assert first.legitimate
            assert await watching.poll() is None
            cluster.kill("n01")
            await look_again(watching)
            assert watching.scene is not None
            assert watching.scene.number == first.number + 1
            assert [each.number for each in watching.timeline()] == [0, 1]
            kept = watching.scene_again(0)
            assert kept is not None
            assert json.loads(kept)["members"] == 3
            assert watching.scene_again(9) is None


@in_loop
async def test_old_scenes_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "SCENES_BYTES_MAX", 1)
    async with Cluster(n=2) as cluster:
        await cluster.wait_healthy(timeout=PATIENCE_S)
        async with Observer(supervisors_of(cluster)) as observer:
            watching = TopicMonitor(observer, "news")
            await watching.poll()
            assert watching.timeline() == []
            assert watching.scene is not None


@in_loop
async def test_unknown_topic_has_an_empty_scene() -> None:
    async with Cluster(n=1) as cluster, Observer(supervisors_of(cluster)) as observer:
        seen = await TopicMonitor(observer, "nothing").poll()
        assert seen is not None
        assert (seen.members, seen.legitimate, seen.nodes) == (0, False, ())


@in_loop
async def test_messages_are_read_once_and_from_another_member_after_a_loss() -> None:
    async with Cluster(n=3) as cluster:
        await cluster.publish("n00", b"one")
        await cluster.wait_healthy(timeout=PATIENCE_S)
        async with Observer(supervisors_of(cluster)) as observer:
            watching = TopicMonitor(observer, "news")
            await watching.poll()
            assert [each.text for each in await watching.read()] == ["one"]
            assert await watching.read() == []
            assert watching._read is not None
            cluster.kill(watching._read[0])
            await cluster.publish(cluster.nodes[0], b"two")
            new: list[str | None] = []
            async with asyncio.timeout(PATIENCE_S):
                while not new:
                    await watching.poll()
                    new = [each.text for each in await watching.read()]
            assert new == ["two"]
            assert [each.text for each in watching.messages] == ["one", "two"]


@in_loop
async def test_reading_continues_after_a_member_has_lost_its_log() -> None:
    async with Cluster(n=2) as cluster:
        await cluster.publish("n00", b"one")
        await cluster.wait_healthy(timeout=PATIENCE_S)
        async with Observer(supervisors_of(cluster)) as observer:
            watching = TopicMonitor(observer, "news")
            await watching.poll()
            assert [each.text for each in await watching.read()] == ["one"]
            assert watching._read is not None
            watching._read = watching._read[0], 1000  # the offset before the loss
            await cluster.publish("n00", b"two")
            await cluster.wait_healthy(timeout=PATIENCE_S)
            await watching.poll()
            assert [each.text for each in await watching.read()] == ["two"]


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", ""),
        ("grüße".encode(), "grüße"),
        (b"\xff\xfe", None),
        (b"x" * (SHOWN_BYTES_MAX + 5), "x" * SHOWN_BYTES_MAX),
        (b"x" * (SHOWN_BYTES_MAX - 1) + "ü".encode(), "x" * (SHOWN_BYTES_MAX - 1)),
        (b"\xff" + b"x" * SHOWN_BYTES_MAX, None),
    ],
)
@in_loop
async def test_payload_is_shown_as_text_if_it_is_text(payload: bytes, text: str | None) -> None:
    async with Cluster(n=1) as cluster:
        await cluster.publish("n00", payload)
        async with Observer(supervisors_of(cluster)) as observer:
            watching = TopicMonitor(observer, "news")
            async with asyncio.timeout(PATIENCE_S):
                while not watching.messages:
                    await watching.poll()
                    await watching.read()
            (message,) = watching.messages
            assert (message.text, message.bytes) == (text, len(payload))
            assert (message.base64 is None) == (text is not None)
