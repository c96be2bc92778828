"""Client side of fault injection: check every affected process first, then inject the faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from skipring.admin.chaos_plans import Damages, numbered
from skipring.admin.inspector import Inspector, TopicContents
from skipring.core.limits import listed
from skipring.core.log_messages import Refused
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.errors import SkipringError, UnreachableError
from skipring.node.chaos_server import NO_CHAOS
from skipring.rpc.client import ANSWER_S, RpcClient, no_members_in, open_client
from skipring.wire.chaos import ChaosAck, ChaosPing, Crash, Damage
from skipring.wire.rpc import Address, NodeStatus

if TYPE_CHECKING:  # reads certificates, which few processes need
    from skipring.security.credentials import Credentials

AT_ONCE: Final = 256  # Guess: as many nodes as are inspected at the same time.
CRASH_S: Final = 0.5  # Guess: a live process answers within this time; a killed one never does.
NAMED_MAX: Final = 8  # Guess: more names in a sentence are not read.


@asynccontextmanager
async def open_chaos_client(
    supervisors: Sequence[Address], topic: TopicId, credentials: Credentials | None = None
) -> AsyncIterator[ChaosClient]:
    """Open a client that damages a topic; raise InputError for an invalid address or topic."""
    async with open_client(supervisors, topic, credentials=credentials) as client:
        yield ChaosClient(client, topic)


async def apply_plan(
    supervisors: Sequence[Address],
    topic: TopicId,
    plan: Callable[[dict[NodeId, NodeStatus]], Damages],
    credentials: Credentials | None = None,
    *,
    is_gentle: bool = False,
) -> Damages:
    """Plan damage for the members of a topic and apply it; return the applied damage."""
    async with open_chaos_client(supervisors, topic, credentials) as client:
        damages = plan(await client.members())
        apply = client.apply_to_consenting if is_gentle else client.apply
        return await apply(damages)


class ChaosClient:
    """Client that damages one topic."""

    def __init__(self, client: RpcClient, topic: TopicId) -> None:
        self._client = client
        self._topic = topic
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def members(self) -> dict[NodeId, NodeStatus]:
        """Return the live members; raise UnreachableError if there is none or no supervisor."""
        inspection = await Inspector(self._client, self._topic).inspect(TopicContents.NOTHING)
        members = {node: each for node, each in inspection.statuses.items() if each.member}
        if not members:
            raise UnreachableError(no_members_in(self._topic))
        return members

    async def apply(self, damages: Damages) -> Damages:
        """Apply a plan; if one affected process refuses or does not answer, damage none."""
        answers = await self._consents(damages)
        refused = sorted(node for node, answer in answers.items() if isinstance(answer, Refused))
        if refused:
            one = len(refused) == 1
            raise SkipringError(
                f"{_named(refused)} {'was' if one else 'were'} {NO_CHAOS}, so nothing was "
                f"damaged; start {'it' if one else 'them'} again with chaos enabled"
            )
        silent = sorted(node for node, answer in answers.items() if answer is None)
        if silent:
            raise UnreachableError(
                f"{_named(silent)} did not answer, so nothing was damaged; try again"
            )
        await self._hit_all(damages)
        return damages

    async def apply_to_consenting(self, damages: Damages) -> Damages:
        """Apply a plan to the processes that consent; return the applied damage."""
        answers = await self._consents(damages)
        done = {n: each for n, each in damages.items() if isinstance(answers[n], ChaosAck)}
        await self._hit_all(done)
        return done

    async def _consents(self, nodes: Iterable[NodeId]) -> dict[NodeId, ChaosAck | Refused | None]:
        asked = sorted(nodes)
        answers = await asyncio.gather(*(self._ask(node, ChaosPing(0)) for node in asked))
        return dict(zip(asked, answers, strict=True))

    async def _hit_all(self, damages: Damages) -> None:
        failures = await asyncio.gather(*(self._hit(node, damages[node]) for node in damages))
        reasons = [failure for failure in failures if failure is not None]
        if reasons:
            raise SkipringError(
                f"the damage is incomplete: {'; '.join(reasons[:NAMED_MAX])}; applied damage heals"
            )

    async def _hit(self, node: NodeId, damages: Sequence[Damage]) -> str | None:
        """Apply the planned damage to a node; return the reason of a failure, else None."""
        for damage in damages:
            answer = await self._ask(node, damage)
            if isinstance(damage, Crash):
                answer = await self._ask(node, ChaosPing(0), CRASH_S)
                return None if answer is None else f"{node} is still running"
            if not isinstance(answer, ChaosAck):
                reason = answer.reason if isinstance(answer, Refused) else "no answer"
                return f"{node}: {reason}"
        return None

    async def _ask(
        self, node: NodeId, damage: Damage, timeout_s: float | None = None
    ) -> ChaosAck | Refused | None:
        if timeout_s is None:
            timeout_s = CRASH_S if isinstance(damage, Crash) else ANSWER_S
        async with self._slots:
            return await self._client.request(
                self._topic, node, partial(numbered, damage), ChaosAck, timeout_s
            )


def _named(nodes: Sequence[NodeId]) -> str:
    """Format node names for a sentence; the supervisor gets an article."""
    return listed([f"the {n}" if n == SUPERVISOR else n for n in nodes], NAMED_MAX)
