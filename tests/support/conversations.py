"""Conversations: values and messages as text, and legitimate rings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from skipring.core.batches import RecordBatch
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckAndPublish,
    CheckLabel,
    CheckTrie,
    Digest,
    GetConfiguration,
    IHave,
    Introduce,
    IntroduceShortcut,
    Message,
    Publications,
    PublishMany,
    PublishNew,
    SetConfiguration,
    TrieEqual,
    Want,
)
from skipring.core.peers import NodeId, Peer
from skipring.core.prefix import Prefix
from skipring.core.state import legitimate_states
from skipring.core.summaries import RangeSummary
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.world.adversaries.builders import node_names, world_of
from skipring.world.snapshot import Snapshot

LABEL_CHARACTERS_MAX = 16  # longer labels of trie nodes are cut

# -- values as text --------------------------------------------------------------------------


def at(text: str) -> Peer:
    """Return the peer written as node@label: ``b@01``."""
    node, _, bits = text.partition("@")
    return Peer(Label.parse(bits), node)


def peer_or_none(text: str) -> Peer | None:
    """Return the peer written as node@label, or None, written as a dash."""
    return None if text == "-" else at(text)


def place(pred: str, bits: str, succ: str) -> SetConfiguration:
    """Return the configuration of a node between two peers written as text."""
    return SetConfiguration(peer_or_none(pred), Label.parse(bits), peer_or_none(succ))


def text_of(value: Peer | Label | None) -> str:
    """Return a value in the form of transcripts."""
    if isinstance(value, Peer):
        return f"{value.node}@{value.label}"
    return "-" if value is None else value.bits


def sentence(message: Message) -> str:
    """Return a message in the form of transcripts."""
    return f"{type(message).__name__} {_words(message)}"


def _words(message: Message) -> str:
    match message:
        case SetConfiguration(pred, label, succ):
            return f"pred={text_of(pred)} label={text_of(label)} succ={text_of(succ)}"
        case CheckLabel(sender, believed, link):
            return f"{text_of(sender)} believes {text_of(believed)} {link.value}"
        case Introduce(peer, link, first_hand):
            return f"{text_of(peer)} {link.value} {'first-hand' if first_hand else 'hearsay'}"
        case IntroduceShortcut(peer):
            return text_of(peer)
        case Digest(node, digest) | GetConfiguration(node, digest) if digest is not None:
            return f"{node} {digest:016x}"
        case _:
            return _words_about_publications(message)


def _texts(publications: Iterable[RecordBatch]) -> str:
    return " ".join(publication_text(publication) for publication in publications)


def _words_about_publications(message: Message) -> str:  # noqa: PLR0911  (one a type)
    match message:
        case CheckTrie() | CheckAndPublish():
            wanted = message.wanted if isinstance(message, CheckAndPublish) else ()
            wants = f" wants {_claims_text(wanted)}" if wanted else ""
            return f"{message.sender} {_claims_text(message.claims)}{wants}"
        case Publications(publications):
            return _texts(publications)
        case TrieEqual(sender, root):
            return f"{sender} {_short(root)}"
        case PublishNew(publication, hops):
            return f"{publication_text(publication)} after {hops} hops"
        case PublishMany(publications, hops):
            return f"{_texts(publications)} after {hops} hops"
        case IHave() | Want():
            ids = [f"{_short(short)}+{hops}" for short, hops in message.short_ids()]
            return " ".join([message.sender, *ids])
        case _:
            return f"{message.node}"


def publication_text(publication: RecordBatch) -> str:
    """Return publisher and first number of a publication: ``a#0``, or ``a#0-1`` of two records."""
    last = f"-{publication.end - 1}" if publication.count > 1 else ""
    return f"{publication.publisher}#{publication.first}{last}"


def _claims_text(claims: Sequence[RangeSummary]) -> str:
    return ", ".join(_claim_text(claim) for claim in claims) or "-"


def _claim_text(claim: RangeSummary) -> str:
    """Return the prefix of a range and its content: ``01 -> 010:1f2e3d4c 011:77aa0b1c``."""
    nodes = [f"{_label_text(node.prefix)}:{_short(node.digest)}" for node in claim.summaries()]
    return " ".join([f"{_label_text(claim.prefix)} ->", *nodes, *map(_short, claim.short_ids())])


def _label_text(prefix: Prefix) -> str:
    """Return a label, or its start if it is long; the label of the root is a star."""
    bits = prefix.bits
    return f"{bits[:8]}..." if len(bits) > LABEL_CHARACTERS_MAX else bits or "*"


def _short(data: bytes) -> str:
    return data[:4].hex()


# -- rings -----------------------------------------------------------------------------------


def standing_ring(nodes: int | Sequence[NodeId]) -> Snapshot:
    """Return SR(n): the node with the i-th name has the label l(i)."""
    names = node_names(nodes) if isinstance(nodes, int) else nodes
    return world_of(dict(legitimate_states(names)), names)


def simulation(start: Snapshot, **options: object) -> Simulation:
    """Return a simulation that starts in a given state."""
    return Simulation(make_scenario({"config": "eager"} | options), start=start)
