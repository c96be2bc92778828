"""Monitor of one topic: its views, delivery paths, and published records."""

from __future__ import annotations

import asyncio
import time
import zlib
from base64 import b64encode
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from skipring.admin.inspector import Inspection
from skipring.core.effects import Origin
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication
from skipring.view.model import SupervisorCard, TopicView, broken_conditions, make_scene
from skipring.view.overview import REQUESTS_BOUND, Observer
from skipring.wire.monitor_rpc import Arrival, ArrivalPage, FetchArrivals
from skipring.wire.rpc import FetchPublications, PublicationPage

KEPT: Final = 2000  # Limit of ours: publications whose way is remembered.
STEPS_MAX: Final = 200_000  # Limit of ours, over all of them: some 60 MB.
PACK_MAX: Final = 64  # of a longer pack only the first publications have a journey

_WAYS: Final = tuple(str(origin) for origin in Origin)


class HopEvent(Struct, frozen=True, kw_only=True, rename={"sender": "from"}):
    """A message with publications that has come to a node."""

    sender: NodeId | None
    to: NodeId
    time: float  # milliseconds since the epoch, as all below
    publisher: NodeId
    seq: int
    hops: int
    way: str
    count: int
    duplicates: int
    latency: float | None


class HopStep(Struct, kw_only=True, rename={"sender": "from"}):
    """How a publication came to one node."""

    node: NodeId
    sender: NodeId | None
    time: float
    latency: float | None
    hops: int
    way: str
    duplicates: int = 0  # how often it came again


class DeliveryPath(Struct, frozen=True, kw_only=True):
    """How a publication came to everybody, as far as it was seen."""

    publisher: NodeId
    seq: int
    published: float | None
    members: int
    reached: int
    messages: int  # that brought it, new or not
    duplicates: int
    arrivals: tuple[HopStep, ...]  # the first comes first


def pulse_of(node: NodeId, arrival: Arrival) -> HopEvent:
    """What a node noted, as it is shown."""
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
    """The ways of the last publications."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple[NodeId, int], dict[NodeId, HopStep]] = OrderedDict()
        self._count = 0  # of all steps

    def add(self, pulses: Iterable[HopEvent]) -> None:
        """Note what has come to nodes."""
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
        """The way of a publication; None if nothing was seen of it."""
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


SAMPLES_MAX: Final = 600  # Our guess: ten minutes of a ring that changes every second.
SCENES_BYTES_MAX: Final = 64 << 20  # Limit of ours, packed: a scene of 1,000 nodes has some 30 KB.
MESSAGES_MAX: Final = 200  # Our guess: more are not read on a page.
SHOWN_BYTES_MAX: Final = 4096  # of a payload
ANSWER_S: Final = 1.0  # what is looked at again and again does not wait long
ASKED_AT_ONCE: Final = 128


class HealthSample(Struct, frozen=True, kw_only=True):
    """A scene on the timeline."""

    number: int
    time: float
    wrong: dict[str, int]
    members: int
    legitimate: bool
    roots: int


class Message(Struct, frozen=True, kw_only=True):
    """A publication as it is shown."""

    id: str
    publisher: NodeId
    seq: int
    time: float
    key: str | None
    text: str | None
    base64: str | None  # of what is not UTF-8
    bytes: int


class TopicMonitor:
    """Watches one topic; what was seen of it is kept, in bounds."""

    def __init__(
        self, observer: Observer, topic: TopicId, clock: Callable[[], float] = time.time
    ) -> None:
        self.topic = topic
        self.scene: TopicView | None = None
        self.messages: deque[Message] = deque(maxlen=MESSAGES_MAX)
        self._observer = observer
        self._clock = clock
        self._samples: deque[HealthSample] = deque(maxlen=SAMPLES_MAX)
        self._kept: TopicView | None = None  # the last one on the timeline
        self._scenes: OrderedDict[int, bytes] = OrderedDict()  # packed
        self._scenes_bytes = 0
        self._journeys = DeliveryPaths()
        self._heard: dict[NodeId, int] = {}  # up to which arrival, of each node
        self._read: tuple[NodeId, int] | None = None  # from whom, and up to which offset
        self._known: set[str] = set()  # the ids of the messages above

    # -- scenes --------------------------------------------------------------------------------

    async def poll(self) -> TopicView | None:
        """Look at the topic; the new scene, or None if it is as it was."""
        inspection = await self._observer.inspect(self.topic)
        if inspection is None:
            return None
        number = self.scene.number + 1 if self.scene is not None else 0
        scene = make_scene(inspection, self._card(inspection), number, self._clock() * 1000)
        if self.scene is not None and _is_alike(scene, self.scene):
            return None
        if self._kept is None or not _is_alike(scene, self._kept, but_for_load=True):
            self._keep(scene)
        is_first, self.scene = self.scene is None, scene
        if is_first:
            await self.listen()  # nodes note what comes once they were asked
        return scene

    def _card(self, inspection: Inspection) -> SupervisorCard:
        address = self._observer.outsider.supervisor_of(self.topic)
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
        self._samples.append(
            HealthSample(
                number=scene.number,
                time=scene.time,
                wrong=dict(scene.wrong),
                members=scene.members,
                legitimate=scene.legitimate,
                roots=scene.roots,
            )
        )
        packed = self._scenes[scene.number] = zlib.compress(msgspec.json.encode(scene), 1)
        self._scenes_bytes += len(packed)
        while self._scenes_bytes > SCENES_BYTES_MAX or len(self._scenes) > SAMPLES_MAX:
            self._scenes_bytes -= len(self._scenes.popitem(last=False)[1])

    def timeline(self) -> list[HealthSample]:
        """The scenes that can still be shown, the oldest first."""
        return [sample for sample in self._samples if sample.number in self._scenes]

    def scene_again(self, number: int) -> bytes | None:
        """A scene of before, in JSON; None if it is not kept."""
        packed = self._scenes.get(number)
        return zlib.decompress(packed) if packed is not None else None

    # -- what travels --------------------------------------------------------------------------

    async def listen(self) -> list[HopEvent]:
        """What has come to the members since we last asked, in the order of time."""
        if self.scene is None:
            return []
        nodes = [each.node for each in self.scene.nodes if each.mark not in ("dead", "outside")]
        slots = asyncio.Semaphore(ASKED_AT_ONCE)
        heard = await asyncio.gather(*(self._arrivals(node, slots) for node in nodes))
        self._heard = {node: self._heard[node] for node in nodes if node in self._heard}
        pulses = sorted((pulse for found in heard for pulse in found), key=lambda each: each.time)
        self._journeys.add(pulses)
        return pulses

    async def _arrivals(self, node: NodeId, slots: asyncio.Semaphore) -> list[HopEvent]:
        since = self._heard.get(node, 0)
        async with slots:
            page = await self._observer.outsider.request(
                self.topic, node, partial(FetchArrivals, since=since), ArrivalPage, ANSWER_S
            )
        if not isinstance(page, ArrivalPage):
            return []
        self._heard[node] = page.next
        return [pulse_of(node, arrival) for arrival in page.arrivals]

    def journey(self, publisher: NodeId, seq: int) -> DeliveryPath | None:
        """The way of a publication; None if nothing was seen of it."""
        return self._journeys.find(publisher, seq, self.scene.members if self.scene else 0)

    # -- what was published ----------------------------------------------------------------------

    async def read(self) -> list[Message]:
        """What was published since we last read; at first the last ones."""
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
        if self._read is None or self._read[1] > ends.get(self._read[0], -1):  # gone, or lost some
            node = max(ends, key=lambda each: (ends[each], each))
            self._read = node, max(ends[node] - MESSAGES_MAX, 0)
        node, start = self._read
        start = max(start, ends[node] - MESSAGES_MAX)
        if start >= ends[node]:
            return ()
        page = await self._observer.outsider.request(
            self.topic,
            node,
            partial(FetchPublications, start=start, end=ends[node], payloads=True),
            PublicationPage,
            ANSWER_S,
        )
        if not isinstance(page, PublicationPage):
            self._read = None  # another one is asked next time
            return ()
        self._read = node, page.next if page.next is not None else ends[node]
        return page.publications


def _is_alike(scene: TopicView, other: TopicView, *, but_for_load: bool = False) -> bool:
    """True if nobody could tell two scenes apart but by when they were, or by the load too."""
    load = other.supervisor.requests if but_for_load else scene.supervisor.requests
    card = replace(scene.supervisor, ticks=other.supervisor.ticks, requests=load)
    same = replace(scene, number=other.number, time=other.time, supervisor=card)
    return same == other


def _message(publication: Publication) -> Message:
    payload = (publication.payload or b"")[:SHOWN_BYTES_MAX]
    text = _text(payload)
    return Message(
        id=publication.id.hex(),
        publisher=publication.publisher,
        seq=publication.seq,
        time=publication.time / 1000,
        key=_text(publication.key, errors="replace") if publication.key is not None else None,
        text=text,
        base64=b64encode(payload).decode() if text is None else None,
        bytes=len(publication.payload or b""),
    )


def _text(data: bytes, errors: str = "strict") -> str | None:
    """The text that bytes are; None if they are none. Half a character at the cut is left out."""
    try:
        return data.decode(errors=errors)
    except UnicodeDecodeError as error:
        is_cut = len(data) == SHOWN_BYTES_MAX and error.start > SHOWN_BYTES_MAX - 4
        return data[: error.start].decode() if is_cut else None
