"""Monitor of one topic: its views, delivery paths, and published records."""

from __future__ import annotations

import asyncio
import time
import zlib
from base64 import b64encode
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from skipring.admin.inspector import Inspection, fetch_log
from skipring.core.effects import Origin
from skipring.core.log_messages import LogPage
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication
from skipring.view.model import SupervisorCard, TopicView, broken_conditions, make_topic_view
from skipring.view.overview import REQUESTS_BOUND, Observer
from skipring.wire.rpc import Arrival, ArrivalPage, FetchArrivals

KEPT: Final = 2000  # Limit: publications with a remembered path.
STEPS_MAX: Final = 200_000  # Limit: steps of all paths, about 60 MB.
PACK_MAX: Final = 64  # only the first publications of a longer pack have a path

_WAYS: Final = tuple(str(origin) for origin in Origin)


class HopEvent(Struct, frozen=True, kw_only=True, rename={"sender": "from"}):
    """Message with publications that arrived at a node."""

    sender: NodeId | None
    to: NodeId
    time: float  # milliseconds since the epoch, like all times below
    publisher: NodeId
    seq: int
    hops: int
    way: str
    count: int
    duplicates: int
    latency: float | None


class HopStep(Struct, kw_only=True, rename={"sender": "from"}):
    """Arrival of a publication at one node."""

    node: NodeId
    sender: NodeId | None
    time: float
    latency: float | None
    hops: int
    way: str
    duplicates: int = 0  # later arrivals of the same publication


class DeliveryPath(Struct, frozen=True, kw_only=True):
    """Arrivals of a publication at all nodes, as far as observed."""

    publisher: NodeId
    seq: int
    published: float | None
    members: int
    reached: int
    messages: int  # that carried it, duplicates included
    duplicates: int
    arrivals: tuple[HopStep, ...]  # in order of time


def hop_event_of(node: NodeId, arrival: Arrival) -> HopEvent:
    """Return the event for an arrival that a node recorded."""
    return HopEvent(
        sender=arrival.sender,
        to=node,
        time=arrival.time / 1000,
        publisher=arrival.publisher,
        seq=arrival.seq,
        hops=arrival.hops,
        way=_WAYS[arrival.origin] if arrival.origin < len(_WAYS) else _WAYS[-1],
        count=arrival.count,
        duplicates=max(arrival.count - arrival.fresh, 0),
        latency=(arrival.time - arrival.published) / 1000 if arrival.published else None,
    )


class DeliveryPaths:
    """Paths of the last publications."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple[NodeId, int], dict[NodeId, HopStep]] = OrderedDict()
        self._count = 0  # number of steps in all paths

    def add(self, pulses: Iterable[HopEvent]) -> None:
        """Record arrivals at nodes."""
        for pulse in pulses:
            for seq in range(pulse.seq, pulse.seq + min(pulse.count, PACK_MAX)):
                self._add_step(seq, pulse)

    def _add_step(self, seq: int, pulse: HopEvent) -> None:
        steps = self._steps.setdefault((pulse.publisher, seq), {})
        self._steps.move_to_end((pulse.publisher, seq))
        known = steps.get(pulse.to)
        if known is None:
            self._count += 1
            steps[pulse.to] = HopStep(
                node=pulse.to,
                sender=pulse.sender,
                time=pulse.time,
                latency=pulse.latency,
                hops=pulse.hops,
                way=pulse.way,
                duplicates=int(pulse.duplicates == pulse.count),
            )
        else:
            known.duplicates += 1
        while len(self._steps) > KEPT or self._count > STEPS_MAX:
            self._count -= len(self._steps.popitem(last=False)[1])

    def find(self, publisher: NodeId, seq: int, members: int) -> DeliveryPath | None:
        """Return the path of a publication; None if no arrival was observed."""
        steps = self._steps.get((publisher, seq))
        if steps is None:
            return None
        arrivals = tuple(sorted(steps.values(), key=lambda step: step.time))
        published = (step.time - step.latency for step in arrivals if step.latency is not None)
        duplicates = sum(step.duplicates for step in arrivals)
        sent = sum(step.sender is not None for step in arrivals)
        return DeliveryPath(
            publisher=publisher,
            seq=seq,
            published=next(published, None),
            members=members,
            reached=len(arrivals),
            messages=sent + duplicates,
            duplicates=duplicates,
            arrivals=arrivals,
        )


SAMPLES_MAX: Final = 600  # Guess: ten minutes of a ring that changes every second.
SCENES_BYTES_MAX: Final = 64 << 20  # Limit, compressed: a scene of 1,000 nodes has about 30 KB.
MESSAGES_MAX: Final = 200  # Guess: a reader does not read more on a page.
SHOWN_BYTES_MAX: Final = 4096  # shown bytes of a payload
ANSWER_S: Final = 1.0  # Guess: a monitor polls often, so it does not wait long.
ASKED_AT_ONCE: Final = 128


class HealthSample(Struct, frozen=True, kw_only=True):
    """Sample on the timeline; its scene has the details."""

    number: int
    time: float
    wrong: dict[str, int]
    members: int
    legitimate: bool
    roots: int


class Message(Struct, frozen=True, kw_only=True):
    """Publication in the form that pages show."""

    id: str
    publisher: NodeId
    seq: int
    time: float
    key: str | None
    text: str | None
    base64: str | None  # if the payload is not UTF-8
    bytes: int


class TopicMonitor:
    """Monitor of one topic, with a bounded history."""

    def __init__(self, observer: Observer, topic: TopicId) -> None:
        self.topic = topic
        self.scene: TopicView | None = None
        self.messages: deque[Message] = deque(maxlen=MESSAGES_MAX)
        self._observer = observer
        self._samples: deque[HealthSample] = deque(maxlen=SAMPLES_MAX)
        self._kept: TopicView | None = None  # the last scene on the timeline
        self._scenes: OrderedDict[int, bytes] = OrderedDict()  # compressed
        self._scenes_bytes = 0
        self._journeys = DeliveryPaths()
        self._read_ends: dict[NodeId, int] = {}  # last arrival read, by node
        self._read: tuple[NodeId, int] | None = None  # node and next offset
        self._known: set[str] = set()  # ids of ``messages``

    # -- scenes --------------------------------------------------------------------------------

    async def poll(self) -> TopicView | None:
        """Inspect the topic; return the new scene, or None if nothing changed."""
        inspection = await self._observer.inspect(self.topic)
        if inspection is None:
            return None
        number = self.scene.number + 1 if self.scene is not None else 0
        scene = make_topic_view(inspection, self._card(inspection), number, time.time() * 1000)
        if self.scene is not None and _is_alike(scene, self.scene):
            return None
        if self._kept is None or not _is_alike(scene, self._kept, but_for_load=True):
            self._keep(scene)
        is_first, self.scene = self.scene is None, scene
        if is_first:
            await self.listen()  # a node records arrivals only after the first request
        return scene

    def _card(self, inspection: Inspection) -> SupervisorCard:
        address = self._observer.client.supervisor_of(self.topic)
        status = self._observer.statuses.get(address)
        return SupervisorCard(
            answers=status is not None,
            address=address,
            ticks=status.ticks if status is not None else 0,
            requests=round(self._observer.requests.get(self.topic, 0.0), 3),
            bound=REQUESTS_BOUND,
            suspects=status.suspects if status is not None else 0,
            evictions=status.evictions if status is not None else 0,
            conditions=broken_conditions(inspection.snapshot.supervisor.database),
        )

    def _keep(self, scene: TopicView) -> None:
        self._kept = scene
        self._samples.append(msgspec.convert(scene, HealthSample, from_attributes=True))
        packed = self._scenes[scene.number] = zlib.compress(msgspec.json.encode(scene), 1)
        self._scenes_bytes += len(packed)
        while self._scenes_bytes > SCENES_BYTES_MAX or len(self._scenes) > SAMPLES_MAX:
            self._scenes_bytes -= len(self._scenes.popitem(last=False)[1])

    def timeline(self) -> list[HealthSample]:
        """Return the samples whose scenes are kept, oldest first."""
        return [sample for sample in self._samples if sample.number in self._scenes]

    def scene_again(self, number: int) -> bytes | None:
        """Return an earlier scene as JSON; None if it is no longer kept."""
        packed = self._scenes.get(number)
        return zlib.decompress(packed) if packed is not None else None

    # -- arrivals ------------------------------------------------------------------------------

    async def listen(self) -> list[HopEvent]:
        """Return the arrivals at members since the last call, in order of time."""
        if self.scene is None:
            return []
        nodes = [each.node for each in self.scene.nodes if each.mark not in ("dead", "outside")]
        slots = asyncio.Semaphore(ASKED_AT_ONCE)
        pages = await asyncio.gather(*(self._arrivals(node, slots) for node in nodes))
        self._read_ends = {node: self._read_ends[node] for node in nodes if node in self._read_ends}
        pulses = sorted((pulse for found in pages for pulse in found), key=lambda each: each.time)
        self._journeys.add(pulses)
        return pulses

    async def _arrivals(self, node: NodeId, slots: asyncio.Semaphore) -> list[HopEvent]:
        since = self._read_ends.get(node, 0)
        async with slots:
            page = await self._observer.client.request(
                self.topic, node, partial(FetchArrivals, since=since), ArrivalPage, ANSWER_S
            )
        if not isinstance(page, ArrivalPage):
            return []
        self._read_ends[node] = page.next
        return [hop_event_of(node, arrival) for arrival in page.arrivals]

    def journey(self, publisher: NodeId, seq: int) -> DeliveryPath | None:
        """Return the path of a publication; None if no arrival was observed."""
        return self._journeys.find(publisher, seq, self.scene.members if self.scene else 0)

    # -- publications --------------------------------------------------------------------------

    async def read(self) -> list[Message]:
        """Return publications since the last call; the first call returns the latest ones."""
        found = [_message(each) for each in await self._published()]
        new = [each for each in found if each.id not in self._known]
        self.messages.extend(new)
        self._known = {each.id for each in self.messages}
        return new

    async def _published(self) -> Iterable[Publication]:
        inspection = self._observer.inspections.get(self.topic)
        ends = {n: s.end for n, s in inspection.statuses.items()} if inspection else {}
        if not ends:
            return ()
        if self._read is None or self._read[1] > ends.get(self._read[0], -1):  # gone, or truncated
            node = max(ends, key=lambda each: (ends[each], each))
            self._read = node, max(ends[node] - MESSAGES_MAX, 0)
        node, start = self._read
        end = ends[node]
        start = max(start, end - MESSAGES_MAX)
        if start >= end:
            return ()
        page = await self._observer.client.request(
            self.topic,
            node,
            fetch_log(start, end, contents=True),
            LogPage,
            ANSWER_S,
        )
        if not isinstance(page, LogPage):
            self._read = None  # the next call asks another node
            return ()
        self._read = node, page.next if page.next is not None else end
        return _records(page, range(start, end))


def _is_alike(scene: TopicView, other: TopicView, *, but_for_load: bool = False) -> bool:
    """Return True if scenes differ only in number, time, ticks and, if ``but_for_load``, load."""
    load = other.supervisor.requests if but_for_load else scene.supervisor.requests
    card = replace(scene.supervisor, ticks=other.supervisor.ticks, requests=load)
    same = replace(scene, number=other.number, time=other.time, supervisor=card)
    return same == other


def _records(page: LogPage, offsets: range) -> Iterator[Publication]:
    """Yield the publications of a page at some offsets; omit unreadable batches."""
    for first, batch in zip(page.offsets, page.batches, strict=True):
        with suppress(ValueError):
            for offset, publication in enumerate(batch.publications(), start=first):
                if offset in offsets:
                    yield publication


def _message(publication: Publication) -> Message:
    payload = publication.payload[:SHOWN_BYTES_MAX]
    text = _text(payload)
    return Message(
        id=publication.id.hex(),
        publisher=publication.publisher,
        seq=publication.seq,
        time=publication.time / 1000,
        key=_text(publication.key, errors="replace") if publication.key is not None else None,
        text=text,
        base64=b64encode(payload).decode() if text is None else None,
        bytes=len(publication.payload),
    )


def _text(data: bytes, errors: str = "strict") -> str | None:
    """Return bytes as text, without a character cut in half; None if they are not UTF-8."""
    try:
        return data.decode(errors=errors)
    except UnicodeDecodeError as error:
        is_cut = len(data) == SHOWN_BYTES_MAX and error.start > SHOWN_BYTES_MAX - 4
        return data[: error.start].decode() if is_cut else None
