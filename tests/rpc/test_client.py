"""RPC client: accepted answers and repeated requests."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import ClassVar

import pytest

from skipring.core.log_messages import Refused
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.net.addresses import supervisor_at
from skipring.net.transport import Receiver, Transport
from skipring.rpc import client as client_module
from skipring.rpc.client import RpcClient
from skipring.wire.codec import Envelope
from skipring.wire.framing import DATA, Frame
from skipring.wire.rpc import ChangePage, FetchChanges, FindMembers, MemberList, WireMessage
from tests.support.scenes import in_loop

TOPIC = "news"
NO_FRAME = Frame(DATA, b"")  # only a process that forwards messages uses it


class OpenTransport(Transport):
    """Transport to which a test can hand messages as a peer would."""

    receivers: ClassVar[list[Receiver]] = []

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.receivers.append(self.receive)


@pytest.fixture(autouse=True)
def _open_transports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "Transport", OpenTransport)


def receive(sender: NodeId, message: WireMessage) -> None:
    """Hand a message to the newest client."""
    OpenTransport.receivers[-1](sender, Envelope(message, TOPIC), NO_FRAME)


@in_loop
async def test_answer_counts_only_from_the_node_that_was_asked() -> None:
    async with RpcClient(["127.0.0.1:1"], rng=Random(0)) as client:
        asking = asyncio.create_task(
            client.request(TOPIC, SUPERVISOR, partial(FindMembers, count=1), MemberList, 30)
        )
        await asyncio.sleep(0)
        for sender in ("a", "client/a", SUPERVISOR, supervisor_at("127.0.0.1:2")):
            receive(sender, MemberList(1, {"forged": "127.0.0.1:1"}))
        receive(supervisor_at("127.0.0.1:1"), MemberList(1, {"real": "127.0.0.1:1"}))
        assert await asking == MemberList(1, {"real": "127.0.0.1:1"})


@in_loop
async def test_answer_of_another_kind_is_ignored_and_refusal_is_returned() -> None:
    async with RpcClient(["127.0.0.1:1"], rng=Random(0)) as client:
        for answer, expected in ((MemberList(1, {}), None), (Refused(2, "no"), Refused(2, "no"))):
            asking = asyncio.create_task(
                client.request(TOPIC, "a", FetchChanges, ChangePage, timeout_s=30)
            )
            await asyncio.sleep(0)
            receive("a", answer)
            assert await asking == expected


@in_loop
async def test_request_without_answer_is_sent_again() -> None:
    asked: list[int] = []

    def question(request: int) -> FetchChanges:
        asked.append(request)
        return FetchChanges(request)

    async with RpcClient(["127.0.0.1:1"], rng=Random(0)) as client:
        assert await client.request(TOPIC, "a", question, ChangePage, 0.01, attempts=2) is None
    assert asked == [1, 2]
