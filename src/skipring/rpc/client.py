"""RPC client: publish through members and query them without joining the ring."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Final, Self, TypeVar, get_args

from skipring.core.batches import RecordBatch
from skipring.core.limits import listed, match_node
from skipring.core.log_messages import Refused
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.retention.retained import POLICY_REASONS
from skipring.errors import (
    InputError,
    MessageError,
    PolicyError,
    UnreachableError,
    VolatileMembersError,
)
from skipring.net.addresses import AddressBook, parse_supervisors, supervisor_at, supervisor_of
from skipring.net.transport import Transport
from skipring.wire.codec import Envelope, encode, named_nodes
from skipring.wire.framing import Frame
from skipring.wire.handshake import NO_TOPIC, Hello, Role
from skipring.wire.limits import check_topic
from skipring.wire.rpc import (
    NO_DISK,
    Address,
    Answer,
    FindMembers,
    MemberList,
    Publish,
    PublishAck,
    WireMessage,
)

if TYPE_CHECKING:  # reads certificates, which few processes need
    from skipring.security.credentials import Credentials

REPORT_S: Final = 0.05  # Guess: a failed dial has ended the requests by then.
LOCATE_MIN_S: Final = 1.0  # Guess: a supervisor on a loaded machine answers within this time.
BACK_OFF_MAX_S: Final = 1.0  # Guess: a client waits for its supervisor, and few dial at once.
ATTEMPTS: Final = 2  # attempts at a request whose answer may be lost
ANSWER_S: Final = 5.0  # Guess: a peer that has not answered by then will not answer.
MEMBERS: Final = 16  # candidates: the first may just have crashed, or have no disk
LOCATIONS_MAX: Final = 8  # Guess: lookups after which publishing gives up.

Question = Callable[[int], WireMessage]  # argument: the number of the request
Wanted = TypeVar("Wanted", bound=Answer)
Checked = TypeVar("Checked")
_ANSWERS: Final = get_args(Answer)


class WaitReport:
    """Reports of why a client waits, each reason once until a request succeeds."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._last = ""

    def __call__(self, reason: str) -> None:
        """Report a reason unless it equals the last one reported."""
        if reason != self._last:
            self._last = reason
            self._report(reason)

    def reset(self) -> None:
        """Forget the last reason: the client has succeeded."""
        self._last = ""


class RpcClient:
    """Client of supervisors and members that does not join a ring."""

    def __init__(
        self,
        supervisors: Sequence[Address],
        *,
        rng: Random,
        credentials: Credentials | None = None,
        is_volatile: bool = False,
        locate_s: float = ANSWER_S,
        report: Callable[[str], None] | None = None,
    ) -> None:
        name: NodeId = f"client-{rng.getrandbits(48):012x}"
        self.name = name if credentials is None else _name_below(credentials.name, name)
        self._is_volatile = is_volatile  # accept members that store publications in memory
        self._supervisors = tuple(supervisors)
        self.book = AddressBook()
        greeting = Hello(node=self.name, address="", role=Role.CLIENT)
        self._links = Transport(
            greeting,
            self.book,
            self._receive,
            rng,
            credentials=credentials,
            back_off_max_s=BACK_OFF_MAX_S,
            on_unreachable=self._on_unreachable,
            on_silent=self._abandon,
        )
        self._locate_s = locate_s  # how long a supervisor may take to answer
        self._report = report  # receives why supervisors are unreachable while requests wait
        self._requests = count(1)
        self._located: dict[TopicId, dict[NodeId, Address]] = {}
        # The addressee by request number: only it can answer.
        self._waiting: dict[int, tuple[NodeId, asyncio.Future[Answer | None]]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection."""
        await self._links.close()

    @property
    def connected(self) -> int:
        """Return the number of open connections."""
        return len(self._links.connections)

    def supervisor_of(self, topic: TopicId) -> Address:
        """Return the supervisor that a topic belongs to."""
        return supervisor_of(topic, self._supervisors)

    async def publish(self, topic: TopicId, batches: Sequence[RecordBatch]) -> list[PublishAck]:
        """Publish batches in order through a member; return once all are durable there.

        Members are tried one after the other. All get the same bytes, so a batch that a member
        stored is not published twice if its answer was lost. Raise PolicyError if the policy of
        the topic refuses a batch.
        """
        tried: dict[NodeId, str] = {}
        for _ in range(LOCATIONS_MAX):
            members = {
                node: at for node, at in (await self._members(topic)).items() if node not in tried
            }
            if not members:
                break
            for node, address in members.items():
                answers = await self._publish_through(topic, node, address, batches)
                done = [answer for answer in answers if isinstance(answer, PublishAck)]
                if len(done) == len(batches):
                    self._located[topic] = {node: address}
                    return done
                refused = [answer.reason for answer in answers if isinstance(answer, Refused)]
                _check_policy(topic, refused)
                tried[node] = next(iter(refused), "no answer")
            self._located.pop(topic, None)
        if tried and set(tried.values()) == {NO_DISK}:
            raise VolatileMembersError(
                f"no member of {topic!r} stores publications on disk; start a node with a data "
                "directory, or accept storage in memory"
            )
        raise UnreachableError(_why_refused(topic, tried))

    async def _publish_through(
        self, topic: TopicId, node: NodeId, address: Address, batches: Sequence[RecordBatch]
    ) -> list[PublishAck | Refused | None]:
        self.book.learn({node: address})
        questions = (partial(Publish, batch=each, volatile=self._is_volatile) for each in batches)
        asked = (self.request(topic, node, question, PublishAck) for question in questions)
        return list(await asyncio.gather(*asked))

    async def _members(self, topic: TopicId) -> dict[NodeId, Address]:
        """Return members of a topic from the cache, or else from the supervisor."""
        if not self._located.get(topic):  # a topic without members may have some now
            self._located[topic] = await self.locate(topic)
        return self._located[topic]

    async def locate(self, topic: TopicId, count: int = MEMBERS) -> dict[NodeId, Address]:
        """Return random members of a topic and learn their addresses, or raise UnreachableError."""
        question = partial(FindMembers, count=count)
        answer = await self.request(topic, SUPERVISOR, question, MemberList, self._locate_s)
        if isinstance(answer, Refused):
            raise UnreachableError(f"{topic!r}: {answer.reason}")
        if answer is None:
            raise UnreachableError(self.no_supervisor_of(topic))
        self.book.learn(answer.members)
        return answer.members

    def no_supervisor_of(self, topic: TopicId) -> str:
        """Return why the supervisor of a topic does not answer, with a remedy."""
        return self.no_supervisor_at(self.supervisor_of(topic))

    def no_supervisor_at(self, address: Address) -> str:
        """Return why the supervisor at an address does not answer, with a remedy."""
        why = self._links.why_unreachable(supervisor_at(address))
        return why or f"no supervisor answers at {address}; is it running?"

    def connection_to(self, node: NodeId) -> object | None:
        """Return a token of the connection in use; a restarted node has another one."""
        return self._links.connection_to(node)

    async def request(
        self,
        topic: TopicId,
        to: NodeId,
        question: Question,
        kind: type[Wanted],
        timeout_s: float = ANSWER_S,
        attempts: int = 1,
    ) -> Wanted | Refused | None:
        """Send a request and return its answer; None if no answer of this type arrives in time.

        Also return None if the peer is unreachable or the connection to it is lost. With several
        ``attempts``, send it again while no answer arrives: an answer may be lost.
        """
        if to == SUPERVISOR:
            address = self.supervisor_of(topic)
            return await self.request_supervisor(
                address, question, kind, timeout_s, attempts, topic=topic
            )
        send = partial(self._links.send, to)
        return await self._request(
            to, send, partial(self._frame, topic, question), kind, timeout_s, attempts
        )

    async def request_supervisor(
        self,
        address: Address,
        question: Question,
        kind: type[Wanted],
        timeout_s: float = ANSWER_S,
        attempts: int = 1,
        *,
        topic: TopicId = NO_TOPIC,
    ) -> Wanted | Refused | None:
        """Send a request to the supervisor at an address; otherwise as ``request``."""
        send = partial(self._links.send_to_supervisor, address)
        asked = supervisor_at(address)
        return await self._request(
            asked, send, partial(self._frame, topic, question), kind, timeout_s, attempts
        )

    def _frame(self, topic: TopicId, question: Question, request: int) -> bytes:
        message = question(request)
        return encode(topic, message, self.book.hints(named_nodes(message)))

    async def _request(
        self,
        asked: NodeId,
        send: Callable[[bytes], None],
        frame: Callable[[int], bytes],
        kind: type[Wanted],
        timeout_s: float,
        attempts: int,
    ) -> Wanted | Refused | None:
        for _ in range(attempts):
            request = next(self._requests)
            future = asyncio.get_running_loop().create_future()
            self._waiting[request] = asked, future
            try:
                send(frame(request))
                async with asyncio.timeout(timeout_s):
                    answer = await future
            except TimeoutError:
                continue
            finally:
                del self._waiting[request]
            if isinstance(answer, kind | Refused):
                return answer
        return None

    def _on_unreachable(self, name: NodeId) -> None:
        if self._report is not None and name.startswith(f"{SUPERVISOR}@"):
            asyncio.get_running_loop().call_later(REPORT_S, self._report_if_waiting, name)

    def _report_if_waiting(self, name: NodeId) -> None:
        """Report why a peer is unreachable if a request to it is still waiting."""
        why = self._links.why_unreachable(name)
        is_awaited = any(asked == name for asked, _ in self._waiting.values())
        if self._report is not None and why is not None and is_awaited:
            self._report(why)

    def _abandon(self, node: NodeId) -> None:
        """Stop waiting for answers of a node that may not have received the requests."""
        for asked, future in list(self._waiting.values()):
            if asked == node and not future.done():
                future.set_result(None)

    def _receive(self, sender: NodeId, envelope: Envelope[WireMessage], _: Frame) -> None:
        message = envelope.message
        if isinstance(message, _ANSWERS):
            asked, future = self._waiting.get(message.request, (None, None))
            if future is not None and asked == sender and not future.done():
                future.set_result(message)


@asynccontextmanager
async def open_client(
    supervisors: Sequence[Address],
    topic: TopicId,
    *,
    credentials: Credentials | None = None,
    is_volatile: bool = False,
    locate_s: float = ANSWER_S,
    report: Callable[[str], None] | None = None,
) -> AsyncIterator[RpcClient]:
    """Open a client for one topic; raise InputError for an invalid address or topic."""
    require(check_topic, topic)
    async with RpcClient(
        parse_supervisors(supervisors, is_secured=credentials is not None),
        rng=Random(),
        credentials=credentials,
        is_volatile=is_volatile,
        locate_s=locate_s,
        report=report,
    ) as client:
        yield client


def require(check: Callable[[Checked], object], value: Checked) -> None:
    """Check a value from the user; raise InputError with the reason if it cannot be sent."""
    try:
        check(value)
    except MessageError as error:
        raise InputError(str(error)) from None


def locate_s(wait_s: float) -> float:
    """Return how long a client that waits ``wait_s`` in total waits for one answer."""
    return min(max(wait_s, LOCATE_MIN_S), ANSWER_S)


def no_members_in(topic: TopicId) -> str:
    """Return a sentence about a topic without members, and the remedy."""
    return f"{topic!r} has no members; start a node (`skipring node`) that subscribes to it"


def _why_refused(topic: TopicId, tried: Mapping[NodeId, str]) -> str:
    if not tried:
        return no_members_in(topic)
    why = listed([f"{node}: {reason}" for node, reason in tried.items()])
    return f"no member of {topic!r} accepted the publication ({why}); is it still running?"


def _check_policy(topic: TopicId, reasons: Sequence[str]) -> None:
    """Raise PolicyError for a reason that all members of the topic have."""
    for reason in reasons:
        if reason in POLICY_REASONS:
            raise PolicyError(f"{topic!r} refuses a publication: {reason}")


def _name_below(certificate_name: str, name: NodeId) -> NodeId:
    """Return a name that a certificate permits; its own name if the longer one is too long."""
    below = f"{certificate_name}.{name}"
    return below if match_node(below) else certificate_name
