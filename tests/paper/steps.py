"""One step of a process, by the core in mode ``paper`` and by the transcription."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.config import Mode, ProtocolConfig
from skipring.core.events import Received, Tick
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckAndPublish,
    CheckLabel,
    CheckTrie,
    GetConfiguration,
    Introduce,
    IntroduceShortcut,
    Message,
    Publications,
    PublishNew,
    RemoveConnections,
    SetConfiguration,
    Subscribe,
    Unsubscribe,
)
from skipring.core.peers import NodeId, Peer
from skipring.core.prefix import Prefix, are_disjoint
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.summaries import (
    DIGEST_BYTES,
    EMPTY_ROOT,
    RangeSummary,
    inner_digest,
    leaf_digest,
)
from skipring.core.supervisor import Supervisor as CoreSupervisor
from tests.paper.preliminaries import Trie
from tests.paper.pseudocode import Sent, Tuple
from tests.paper.readings import ReadSubscriber, ReadSupervisor
from tests.support.fake_host import FakeHost
from tests.support.fake_host import Sent as CoreSent
from tests.support.machines import TOPIC, Scripted, subscriber

PAPER = ProtocolConfig.of(Mode.PAPER)
Call = tuple[str, tuple[Any, ...]]  # procedure of the paper, and its arguments


class Step(NamedTuple):
    """State and messages after one event, and the probability of the coin that was thrown."""

    state: Any
    sent: Counter[Sent]
    coin: Fraction | None = None


# -- values of the core as values of the paper ------------------------------------------------


def bits(label: Label | None) -> str | None:
    """Return a label as the paper writes it."""
    return label.bits if label is not None else None


def pair(peer: Peer | None) -> Tuple | None:
    """Return (label_v, v)."""
    return Tuple(peer.label.bits, peer.node) if peer is not None else None


def key(batch: RecordBatch) -> str:
    """Return the key of a publication."""
    return Prefix.of_id(batch.id).bits


def bytes_of(key_bits: str) -> bytes:
    """Return the id with a key."""
    return int(key_bits, 2).to_bytes(len(key_bits) // 8, "big")


def summaries(claims: tuple[RangeSummary, ...]) -> tuple[tuple[str, bytes], ...] | None:
    """Return the tuples (l, h) of claims; None if they have a form that the paper does not have."""
    found = [summary for claim in claims for summary in claim.summaries()]
    if any(claim.leaves for claim in claims) or len(found) < len(claims):
        return None
    if any(len(summary.digest) != DIGEST_BYTES for summary in found):
        return None
    if not are_disjoint([claim.prefix for claim in claims]):
        return None  # refused (T9)
    return tuple((summary.prefix.bits, summary.digest) for summary in found)


def call(message: Message) -> Call | None:  # noqa: C901, PLR0911  (one match)
    """Return a message as a procedure call of the paper, or None if the paper has no such call."""
    match message:
        case CheckLabel(sender, believed, link) if believed is not None:
            return "Check", (pair(sender), bits(believed), link.value)
        case Introduce(peer, link, _):
            return "Introduce", (pair(peer), link.value)
        case IntroduceShortcut(peer):
            return "IntroduceShortcut", (peer.label.bits, peer.node)
        case RemoveConnections(node):
            return "RemoveConnections", (node,)
        case SetConfiguration(pred, label, succ):
            return "SetData", (pair(pred), bits(label), pair(succ))
        case Subscribe(node) | Unsubscribe(node) | GetConfiguration(node, None) if node is not None:
            return type(message).__name__, (node,)
        case CheckTrie(sender, claims, _, False) if (tuples := summaries(claims)) is not None:
            return "CheckTrie", (sender, tuples)
        case CheckAndPublish(sender, claims, _, (wanted,)) if (
            not (wanted.leaves or wanted.labels) and (tuples := summaries(claims)) is not None
        ):
            return "CheckAndPublish", (sender, tuples, wanted.prefix.bits)
        case Publications(publications):
            return "Publish", (tuple(sorted(map(key, publications))),)
        case PublishNew(publication, _):
            return "PublishNew", (key(publication),)
        case _:
            return None


# -- steps of subscribers ---------------------------------------------------------------------


def without_additions(state: SubscriberState) -> SubscriberState:
    """Return a state with the variables of sections 3.2 and 4.2 only, and valid publications."""
    valid = tuple(each for each in state.publications if each.verified_records(TOPIC))
    return replace(
        state, member=True, silence={}, digests={}, hashes={}, memory=None, publications=valid
    )


def subscriber_value(state: SubscriberState) -> tuple[Any, ...]:
    """Return the variables of a subscriber of the core."""
    edges = tuple(pair(each) for each in (state.left, state.right, state.ring))
    slots = {label.bits: holder for label, holder in state.shortcuts.items()}
    return bits(state.label), *edges, slots, frozenset(map(key, state.publications))


def core_step(
    node: NodeId, state: SubscriberState, message: Message | None, *, heads: bool
) -> Step:
    """Let a subscriber of the core execute Timeout or a message; ``heads``: its coin succeeds."""
    rng = Scripted(0 if heads else 1)
    host = subscriber(state, node=node, rng=rng, config=PAPER)
    sent = host.request(Tick() if message is None else Received(message, None))
    coin = Fraction(1, prod(rng.odds)) if heads and rng.odds else None
    return Step(subscriber_value(host.machine.state()), calls_sent(sent), coin)


def paper_step(
    node: NodeId,
    state: SubscriberState,
    message: Message | None,
    readings: frozenset[str],
    *,
    heads: bool,
    partner: NodeId | None = None,
) -> Step:
    """Let the transcription do the same; ``partner`` is the node that PublishTimeout chooses."""
    u = transcribed(node, state, readings)
    coins: list[Fraction] = []

    def coin(probability: Fraction) -> bool:
        coins.append(probability)
        return heads

    u.coin = coin
    u.choose = lambda options: next((v for v in options if v.node == partner), options[0])
    if message is None:
        u.step("timeout")
        u.step("publish_timeout")
    else:
        found = call(message)
        assert found is not None
        u.step(*arguments_of(u, *found))
    edges = tuple(Tuple(*each) if each is not None else None for each in (u.left, u.right, u.ring))
    value = (u.label, *edges, u.shortcuts, frozenset(u.trie.publications))
    linearize = "Introduce" if "one name" in readings else "Linearize"
    sent = Counter(plain(each, linearize) for each in u.sent)
    return Step(value, sent, coins[0] if heads and coins else None)


def transcribed(node: NodeId, state: SubscriberState, readings: frozenset[str]) -> ReadSubscriber:
    """Return a subscriber of the transcription in a given state."""
    trie = Trie(lambda label: leaf_digest(bytes_of(label)), inner_digest)
    trie.publications = {key(batch): key(batch) for batch in state.publications}
    u = ReadSubscriber(node, trie, readings, EMPTY_ROOT)
    tied = [
        u.pair(each.label.bits, each.node) if each is not None else None
        for each in (state.left, state.right, state.ring)
    ]
    u.left, u.right, u.ring = tied
    u.label = u.pair(state.label.bits, node).label if state.label is not None else None
    u.shortcuts = {label.bits: holder for label, holder in sorted(state.shortcuts.items())}
    return u


def arguments_of(u: ReadSubscriber, procedure: str, arguments: tuple[Any, ...]) -> list[Any]:
    """Return the method of a procedure and its arguments, labels tied as the readings want."""
    tied = [u.pair(*each) if isinstance(each, Tuple) else each for each in arguments]
    match procedure:
        case "SetData" if tied[1] is not None:
            tied[1] = u.pair(tied[1], u.id).label
        case "Publish":
            tied = [[(each, each) for each in tied[0]]]
        case "PublishNew":
            tied = [tied[0], tied[0]]
    return [METHODS[procedure], *tied]


METHODS = {
    "Check": "check",
    "Introduce": "introduce",
    "IntroduceShortcut": "introduce_shortcut",
    "RemoveConnections": "remove_connections",
    "SetData": "set_data",
    "CheckTrie": "check_trie",
    "CheckAndPublish": "check_and_publish",
    "Publish": "publish",
    "PublishNew": "publish_new",
    "Subscribe": "subscribe",
    "Unsubscribe": "unsubscribe",
    "GetConfiguration": "get_configuration",
}


def calls_sent(sent: CoreSent) -> Counter[Sent]:
    """Return the messages of the core as calls of the paper; others by their text."""
    found = [(to, call(message) or (repr(message), ())) for to, message in sent]
    return Counter((to, procedure, arguments) for to, (procedure, arguments) in found)


def plain(sent: Sent, linearize: str) -> Sent:
    """Return a message of the transcription in the form of ``calls_sent``."""
    to, procedure, arguments = sent
    match procedure:
        case "Linearize" if linearize != procedure:
            return to, linearize, (Tuple(*arguments[0]), "LIN")
        case "Publish":
            return to, procedure, (tuple(sorted(each for each, _ in arguments[0])),)
        case "PublishNew":
            return to, procedure, arguments[:1]
    return (
        to,
        procedure,
        tuple(tuple(each) if isinstance(each, list) else each for each in arguments),
    )


# -- steps of the supervisor ------------------------------------------------------------------


def core_supervisor_step(state: SupervisorState, message: Message | None) -> Step:
    """Let the supervisor of the core execute Timeout or a message."""
    machine = CoreSupervisor(config=PAPER, state=state)
    host = FakeHost(machine)
    sent = host.request(Tick() if message is None else Received(message, None))
    found = machine.state()
    return Step((dict(found.database), found.next), calls_sent(sent))


def paper_supervisor_step(
    state: SupervisorState, message: Message | None, readings: frozenset[str]
) -> Step:
    """Let the transcription do the same."""
    s = ReadSupervisor(readings)
    s.database, s.next = dict(state.database), state.next
    if message is None:
        s.step("timeout")
    else:
        found = call(message)
        assert found is not None
        s.step(METHODS[found[0]], *found[1])
    return Step((s.database, s.next), Counter(plain(each, "Linearize") for each in s.sent))
