"""Routes of the dashboard: each parses its request, makes one call and returns JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.metadata import version
from importlib.resources import files
from itertools import count
from pathlib import Path
from secrets import randbits
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from skipring.admin import chaos_plans
from skipring.admin.chaos_client import ChaosClient
from skipring.admin.chaos_plans import Damages
from skipring.admin.diagnosis import LAYERS, REPAIRS, explain, is_about
from skipring.admin.inspector import Inspector
from skipring.core.batches import BatchRecord, RecordBatch, check_record
from skipring.core.peers import NodeId, TopicId
from skipring.errors import InputError, SkipringError, UnreachableError
from skipring.observability.clock import publication_time_us
from skipring.observability.logs import logger
from skipring.rpc.client import require
from skipring.view.model import content_violations
from skipring.view.overview import Observer
from skipring.web.auth import Guarded, TokenAuth, refused
from skipring.web.events import KEEP_ALIVE_S, Event, EventStream
from skipring.web.pipelines import lags
from skipring.wire.limits import check_topic
from skipring.wire.rpc import Address, NodeStatus
from skipring.world.adversaries import ADVERSARIES

Members = dict[NodeId, NodeStatus]

TICKS: Final = 60  # Guess: a partition that no user ends is over by then.
SEED_BITS: Final = 32


class ChaosRequest(Struct, frozen=True):
    """Damage that a user requests."""

    damage: Literal["kill", "adversary", "database", "labels", "tries", "partition", "heal"]
    nodes: tuple[NodeId, ...] = ()
    code: str = "A15"

    @property
    def is_gentle(self) -> bool:
        """Return True if the refusal of one member does not prevent damage to other members."""
        return self.damage == "heal"


def plan_of(  # noqa: PLR0911  (a table of cases)
    wish: ChaosRequest, topic: TopicId, members: Members
) -> tuple[str, Damages]:
    """Return a description of the damage, and its parts by process; raise InputError if invalid."""
    seed = randbits(SEED_BITS)
    match wish.damage:
        case "kill":
            if not wish.nodes:
                raise InputError("the request names no node to kill")
            chaos_plans.check_names(wish.nodes, members)
            return "killed", chaos_plans.killed(wish.nodes)
        case "adversary":
            plan = chaos_plans.adversarial(wish.code, topic, members, seed)
            return "everything replaced", plan
        case "database":
            return "the database was wiped", chaos_plans.no_database()
        case "labels":
            return "labels scrambled", chaos_plans.wrong_labels(members, seed)
        case "tries":
            plan = chaos_plans.spoilt_tries(members, chaos_plans.SHARE, seed)
            return "tries damaged, and half of the publications deleted", plan
        case "partition":
            halves = chaos_plans.parts_of(members, 2, seed)
            return "partitioned into two halves", chaos_plans.partition(halves, TICKS)
        case "heal":
            return "partitions ended", chaos_plans.healed(members)


STATIC: Final = Path(str(files("skipring.web"))) / "static"
BODY_BYTES_MAX: Final = 1 << 20  # Limit: the largest payload, as JSON.
NO_TOPIC: Final = "the topic is missing: ?topic=..."

Given = TypeVar("Given")

_LOG: Final = logger("dashboard")


class DashboardSettings(Struct, frozen=True, kw_only=True):
    """Settings of a dashboard: its sources, initial topic, and whether it may inject faults."""

    supervisors: tuple[Address, ...]
    topic: TopicId | None = None
    chaos: bool = False
    pipelines: tuple[Address, ...] = ()  # metrics pages of pipelines


class _Text(Struct, frozen=True):
    """Publication that a user enters in the page."""

    text: str
    key: str | None = None


class App:
    """Dashboard of a cluster."""

    def __init__(self, settings: DashboardSettings, observer: Observer, feed: EventStream) -> None:
        self._settings = settings
        self._observer = observer
        self._feed = feed
        self._seqs = count()

    def behind(self, auth: TokenAuth) -> ASGIApp:
        """Return the ASGI application, protected by ``auth``."""
        routes = [
            Route("/", self._index),
            Route("/api/settings", self._show_settings),
            Route("/api/events", self._events),
            Route("/api/timeline", self._timeline),
            Route("/api/scene", self._scene),
            Route("/api/messages", self._messages),
            Route("/api/journey", self._journey),
            Route("/api/node", self._node),
            Route("/api/pipelines", self._pipelines),
            Route("/api/publish", self._publish, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        if self._settings.chaos:
            routes.append(Route("/api/chaos", self._damage, methods=["POST"]))
        handlers: Mapping[type[Exception], Callable[..., Response]] = {
            SkipringError: _on_error,
            HTTPException: _on_http_error,
            Exception: _on_mistake,
        }
        app = Starlette(routes=routes, exception_handlers=dict(handlers))
        app.router.redirect_slashes = False  # an unknown path gets 404, not a redirect
        return Guarded(app, auth)

    # -- index and settings ----------------------------------------------------------------------

    async def _index(self, _: Request) -> Response:
        return Response((STATIC / "index.html").read_bytes(), media_type="text/html")

    async def _show_settings(self, _: Request) -> Response:
        settings = self._settings
        shown: dict[str, object] = {
            "version": version("skipring"),
            "supervisors": settings.supervisors,
            "topic": settings.topic,
            "chaos": settings.chaos,
            "pipelines": settings.pipelines,
            "layers": {str(layer): LAYERS[layer] for layer in REPAIRS},
        }
        if settings.chaos:
            shown["adversaries"] = [
                {"code": each.code, "text": each.title} for each in ADVERSARIES.values()
            ]
        return _json(shown)

    async def _events(self, request: Request) -> Response:
        """Stream the events of a topic; without one, the overview, until a page selects one."""
        topic = _topic(request) if "topic" in request.query_params else None
        self._feed.check_room(topic)  # a refusal needs a status, so it precedes the stream
        return StreamingResponse(self._stream(topic), media_type="text/event-stream")

    async def _stream(self, topic: TopicId | None) -> AsyncIterator[Event]:
        with self._feed.listening(topic) as page:
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        event = await page.get()
                except TimeoutError:
                    event = b": still here\n\n"
                if event is None:
                    return
                yield event

    # -- recorded state --------------------------------------------------------------------------

    async def _timeline(self, request: Request) -> Response:
        return _json({"samples": self._feed.watcher(_topic(request)).timeline()})

    async def _scene(self, request: Request) -> Response:
        number = _number(request, "number")
        scene = self._feed.watcher(_topic(request)).scene_again(number)
        if scene is None:
            return refused(f"scene {number} is no longer stored", 404)
        return Response(scene, media_type="application/json")

    async def _messages(self, request: Request) -> Response:
        return _json({"messages": list(self._feed.watcher(_topic(request)).messages)})

    async def _journey(self, request: Request) -> Response:
        publisher, seq = request.query_params.get("publisher", ""), _number(request, "seq")
        journey = self._feed.watcher(_topic(request)).journey(publisher, seq)
        if journey is None:
            return refused(
                "no arrival was observed: it was published before the dashboard watched it", 404
            )
        return _json(journey)

    async def _node(self, request: Request) -> Response:
        topic, node = _topic(request), request.query_params.get("node", "")
        client = self._observer.client
        inspection = await self._observer.inspect(topic)
        if inspection is None:
            raise UnreachableError(client.no_supervisor_of(topic))
        journal = None
        if node in inspection.statuses:
            journal = await Inspector(client, topic).journal(node)
        explanation = explain(inspection, node, journal)
        lacking = (each for each in content_violations(inspection) if is_about(each, node))
        return _json(
            {
                "node": node,
                "standing": explanation.standing,
                "tick": explanation.tick,
                "journal": [
                    msgspec.structs.asdict(entry) | {"time": entry.time / 1000}
                    for entry in explanation.journal
                ],
                "violations": [
                    {"layer": each.layer, "text": each.text, "repair": REPAIRS[each.layer]}
                    for each in (*explanation.violations, *lacking)
                ],
            }
        )

    async def _pipelines(self, _: Request) -> Response:
        return _json(await lags(self._settings.pipelines))

    # -- actions of users ------------------------------------------------------------------------

    async def _publish(self, request: Request) -> Response:
        topic, given = _topic(request), await _body(request, _Text)
        client = self._observer.client
        record = BatchRecord(
            payload=given.text.encode(errors="replace"),
            time=publication_time_us(),
            key=given.key.encode(errors="replace") if given.key else None,
        )
        require(check_record, record)
        first = next(self._seqs)
        made = RecordBatch.of([record], publisher=client.name, first=first, topic=topic)
        await client.publish(topic, [made])
        return _json({"id": made.record_id(0).hex(), "publisher": client.name, "seq": first})

    async def _damage(self, request: Request) -> Response:
        topic, wish = _topic(request), await _body(request, ChaosRequest)
        client = ChaosClient(self._observer.client, topic)
        words, plan = plan_of(wish, topic, await client.members())
        apply = client.apply_to_consenting if wish.is_gentle else client.apply
        done = await apply(plan)
        hit = "1 process was damaged" if len(done) == 1 else f"{len(done)} processes were damaged"
        return _json({"done": f"{words}: {hit}"})


# --- requests and responses ---------------------------------------------------------------------


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _topic(request: Request) -> TopicId:
    topic: TopicId | None = request.query_params.get("topic")
    if not topic:
        raise InputError(NO_TOPIC)
    require(check_topic, topic)
    return topic


def _number(request: Request, name: str) -> int:
    given = request.query_params.get(name, "")
    if not given.isascii() or not given.isdigit() or len(given) > len(str(1 << 63)):
        raise InputError(f"{name} must be a number, not {given[:40]!r}")
    return int(given)


async def _body(request: Request, kind: type[Given]) -> Given:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise InputError(
                f"more than {BODY_BYTES_MAX} bytes; the limit of a request is exceeded"
            )
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise InputError(f"invalid request: {error}") from None


def _on_error(_: Request, error: SkipringError) -> Response:
    if isinstance(error, InputError):
        return refused(str(error), 400)
    return refused(str(error), 503 if isinstance(error, UnreachableError) else 409)


def _on_http_error(_: Request, error: HTTPException) -> JSONResponse:
    return refused(error.detail, error.status_code)


def _on_mistake(request: Request, error: Exception) -> JSONResponse:
    _LOG.error("page_failed", path=request.url.path, error=repr(error))
    return refused(f"internal error: {error!r}; please report it", 500)
