"""Entry points of the processes: run a supervisor or a node until it is asked to stop."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from skipring.core.limits import check_name
from skipring.core.peers import NodeId, TopicId
from skipring.errors import IdentityError, InputError, MessageError, SkipringError
from skipring.net.addresses import (
    is_anywhere,
    is_loopback,
    parse_supervisors,
    split_address,
)
from skipring.net.connection_limits import LINKS_MAX
from skipring.net.event_loop import new_loop
from skipring.net.handshake_limits import PLAIN
from skipring.net.sockets import why_not_listening
from skipring.net.transport import Transport
from skipring.node.group_commit import opened
from skipring.node.host import NodeHost
from skipring.node.metrics_server import Telemetry
from skipring.node.readings import node_readings, supervisor_readings
from skipring.node.settings import NodeSettings, node_id
from skipring.node.supervisor_host import SupervisorHost
from skipring.observability.clock import LoopPause
from skipring.observability.logs import logger
from skipring.observability.metrics import HostReadings
from skipring.security.credentials import may_act_as
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.store import LogStore
from skipring.storage.supervisor_store import SupervisorStore
from skipring.wire.limits import check_topic
from skipring.wire.rpc import Address

if TYPE_CHECKING:
    from skipring.security.credentials import Credentials


def allow_files(wanted: int) -> int:
    """Raise the limit of open files to ``wanted``, or as far as allowed; return the new limit."""
    try:
        import resource  # noqa: PLC0415  (not on every system)
    except ImportError:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


# Connections of peers, connections without a greeting, own connections, and other files.
FILES: Final = LINKS_MAX + PLAIN.at_once + 1024
LEAVING_S: Final = 5.0  # Guess: as long as a person waits for a process to stop.

Announce = Callable[[str], None]
Result = TypeVar("Result")

_LOG: Final = logger("process")


class Stop(Struct, frozen=True):
    """End of a node: the signal, and the publications that were not handed over."""

    signal: signal.Signals
    not_handed_over: int = 0  # publications that no remaining member has confirmed


class ProcessPaths(Struct, frozen=True, kw_only=True):
    """Addresses and data directory of a process."""

    listen: Address
    data: Path | None = None
    metrics: Address | None = None


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in a new event loop, uvloop where it is installed."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


async def serve_supervisor(
    settings: NodeSettings, place: ProcessPaths, announce: Announce
) -> signal.Signals:
    """Run a supervisor until a signal stops it; return the signal."""
    host, port = split_address(place.listen, "listen", is_secured=_is_secured(settings))
    if settings.credentials is not None and not may_act_as("supervisor", settings.credentials.name):
        raise IdentityError(
            f"the certificate has the name {settings.credentials.name}; a supervisor "
            "needs the name supervisor; create a certificate with skipring certs issue supervisor"
        )
    stop = stop_signal()
    async with AsyncExitStack() as stack:
        store = None
        if place.data is not None:
            store = stack.enter_context(await opened(SupervisorStore.open, place.data))
        allow_files(FILES)
        server = SupervisorHost(settings, rng=Random(), store=store)
        stack.push_async_callback(server.close)
        await _listening(server.start(host, port), place.listen)
        _on_hangup(partial(_read_again, server.links, None))
        _show(partial(supervisor_readings, server), settings, place, stack)
        gc.freeze()  # Measured: a full collection of the imported code takes 25 ms.
        announce(f"listening {server.address}")
        _LOG.info("supervisor_started", address=server.address, secured=_is_secured(settings))
        await stop
        _LOG.info("supervisor_stopping")
    return stop.result()


async def serve_node(
    settings: NodeSettings,
    place: ProcessPaths,
    topics: tuple[TopicId, ...],
    *,
    name: NodeId | None,
    announce: Announce,
    supervisors_again: Callable[[], Sequence[Address]] | None = None,
) -> Stop:
    """Run a subscriber of the given topics until a signal stops it; leave the topics.

    Before it leaves, it hands over its publications, within ``settings.drain_s`` or until a second
    signal. SIGHUP reloads the certificates and the list of supervisors: topics move if the list
    has changed.
    """
    host, port = _checked(settings, place, topics)
    stop = stop_signal()
    async with AsyncExitStack() as stack:
        called = _name_of(place.data, name, settings.credentials)
        store, trace = await _open_store(place.data, called, topics, stack)
        allow_files(FILES)
        node = NodeHost(called, settings, rng=Random(), store=store, trace=trace)
        stack.push_async_callback(node.close)
        await _listening(node.start(host, port), place.listen)
        reload = partial(_reload, node, supervisors_again) if supervisors_again else None
        _on_hangup(partial(_read_again, node.links, reload))
        _show(partial(node_readings, node), settings, place, stack)
        gc.freeze()  # Measured: a full collection of the imported code takes 25 ms.
        announce(f"listening {node.address}")
        _LOG.info("node_started", node=called, address=node.address, topics=" ".join(topics))
        for topic in topics:
            node.subscribe(topic)
        await stop
        _LOG.info("node_stopping", node=called)
        left = await hand_over(node, topics, settings.drain_s, stop_signal())
        await asyncio.gather(*(node.unsubscribe(topic, LEAVING_S) for topic in topics))
    return Stop(stop.result(), left)


def _checked(
    settings: NodeSettings, place: ProcessPaths, topics: tuple[TopicId, ...]
) -> tuple[str, int]:
    """Check the arguments of a node; return the host and port to listen on."""
    host, port = split_address(place.listen, "listen", is_secured=_is_secured(settings))
    parse_supervisors(settings.supervisors, is_secured=_is_secured(settings))
    if is_anywhere(host) and settings.advertised is None:
        raise InputError(
            f"peers cannot dial {host}; give the address that they dial in advertise",
            parameter="listen",
        )
    for topic in topics:
        check_topic_name(topic)
    return host, port


async def _open_store(
    data: Path | None, name: NodeId, topics: tuple[TopicId, ...], stack: AsyncExitStack
) -> tuple[LogStore | None, DeliveryLog | None]:
    """Open the store and the delivery log of a data directory; return None without one."""
    if data is None:
        return None, None
    store = stack.enter_context(await opened(partial(_opened_logs, name, topics), data))
    trace = await asyncio.to_thread(DeliveryLog.open, data, store)
    stack.callback(trace.close)
    if store.damage is not None:
        _LOG.warning("storage_recovered", what=store.damage)
    return store, trace


def _opened_logs(name: NodeId, topics: tuple[TopicId, ...], data: Path) -> LogStore:
    """Open a store and the logs of topics, also those that recovery finds only by name."""
    with ExitStack() as stack:
        store = stack.enter_context(LogStore.open(data, name))
        for topic in topics:
            store.log(topic)
        stack.pop_all()
    return store


async def hand_over(
    node: NodeHost, topics: Sequence[TopicId], drain_s: float, stop: asyncio.Future[signal.Signals]
) -> int:
    """Hand over the publications of topics; return the number that was not handed over.

    Another signal ends the wait.
    """

    async def drain(topic: TopicId) -> int:
        departure = await node.drain(topic, drain_s)
        left = departure.unconfirmed
        if departure.receiver is not None and not left:
            _LOG.info("handed_over", topic=topic, to=departure.receiver)
        elif left:
            _LOG.error("not_handed_over", topic=topic, publications=left)
        elif departure.on_disk:
            _LOG.info("on_this_disk_only", topic=topic, publications=departure.on_disk)
        return left

    draining = {topic: asyncio.ensure_future(drain(topic)) for topic in topics}
    everything = asyncio.gather(*draining.values(), return_exceptions=True)
    await asyncio.wait((everything, stop), return_when=asyncio.FIRST_COMPLETED)
    left = 0
    for topic, task in draining.items():
        if task.done():
            left += task.result()
            continue
        count = node.departures.not_handed_over(topic)
        if count:
            _LOG.error("not_handed_over", topic=topic, publications=count, reason="a second signal")
        left += count
    everything.cancel()
    await asyncio.gather(everything, return_exceptions=True)  # retrieves its CancelledError
    return left


# -- names and addresses -----------------------------------------------------------------------


def check_topic_name(topic: TopicId) -> None:
    """Raise InputError for a text that cannot name a topic."""
    try:
        check_topic(topic)
    except MessageError as error:
        raise InputError(str(error), parameter="topic") from None


def _name_of(data: Path | None, name: NodeId | None, credentials: Credentials | None) -> NodeId:
    """Return the name of the node: given, stored, from its certificate, or random."""
    if name is not None:
        check_name(name, parameter="name")
    elif credentials is not None:
        name = credentials.name
    called = node_id(data, name) if data is not None else name or _any_name()
    if credentials is not None and not may_act_as(credentials.name, called):
        raise IdentityError(
            f"the name of the node is {called}, but that of its certificate {credentials.name}; "
            f"the node must have that name or {credentials.name}.something"
        )
    return called


def _any_name() -> NodeId:
    """Return a name for a node without a data directory."""
    return f"node-{Random().getrandbits(48):012x}"


def _is_secured(settings: NodeSettings) -> bool:
    return settings.credentials is not None


async def _listening(starting: Coroutine[Any, Any, object], listen: Address) -> None:
    try:
        await starting
    except OSError as error:
        raise InputError(why_not_listening(listen, error), parameter="listen") from None


# -- metrics and signals -----------------------------------------------------------------------


def _show(
    read: Callable[[LoopPause], HostReadings],
    settings: NodeSettings,
    place: ProcessPaths,
    stack: AsyncExitStack,
) -> None:
    """Serve the metrics pages: plain on loopback, elsewhere under TLS with client certificates."""
    if place.metrics is None:
        return
    host, port = split_address(place.metrics, "metrics", is_secured=_is_secured(settings))
    credentials = None if is_loopback(host) else settings.credentials
    pause = LoopPause(settings.tick_s)
    pause.start()
    stack.callback(pause.stop)
    telemetry = Telemetry(partial(read, pause), asyncio.get_running_loop())
    stack.callback(telemetry.close)
    _LOG.info("metrics_started", address=telemetry.start(host, port, credentials))


def _on_hangup(react: Callable[[], None]) -> None:
    """Handle SIGHUP, which would end the process otherwise."""
    with suppress(AttributeError, NotImplementedError):  # not every system has this signal
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, react)


def _read_again(links: Transport, reload: Callable[[], None] | None) -> None:
    """Reload certificates, the deny list and the list of supervisors, as far as configured."""
    if links.credentials is not None:
        links.credentials.reload()
        links.check_certificates()
    if reload is not None:
        reload()
    elif links.credentials is None:
        reason = "no certificates and no settings file to reload"
        _LOG.warning("settings_rejected", reason=reason)


def _reload(node: NodeHost, supervisors_again: Callable[[], Sequence[Address]]) -> None:
    try:
        supervisors = supervisors_again()
    except SkipringError as error:
        _LOG.error("settings_rejected", reason=str(error))
        return
    node.membership.set_supervisors(supervisors)
    _LOG.info("settings_reloaded", supervisors=",".join(supervisors))


def stop_signal(*numbers: signal.Signals) -> asyncio.Future[signal.Signals]:
    """Return a future that receives the stop signal, by default SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[signal.Signals] = loop.create_future()

    def on_signal(number: signal.Signals) -> None:
        if not stop.done():
            stop.set_result(number)

    for number in numbers or (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return stop
