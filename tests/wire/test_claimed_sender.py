"""The table of claims contains every message that names its sender."""

import pytest
from msgspec.structs import fields

from skipring.core.messages import (
    CheckAndPublish,
    CheckHeld,
    CheckLabel,
    CheckTrie,
    Digest,
    Draining,
    GetConfiguration,
    HandoverDone,
    Held,
    IHave,
    Introduce,
    IntroduceShortcut,
    RemoveConnections,
    ReportUnresponsive,
    RequestHandover,
    Subscribe,
    TrieEqual,
    Unsubscribe,
    Want,
)
from skipring.core.peers import NodeId, Peer
from skipring.wire.claimed_sender import CLAIMS, names_another
from skipring.wire.rpc import WIRE_TYPES, WireMessage
from tests.wire.samples import SAMPLES

# They name one node that is not the sender: each is a decision, recorded in 0045.
SUBJECTS = {IntroduceShortcut, ReportUnresponsive}


def of_one_node(kind: type[WireMessage]) -> list[str]:
    """Return the fields of a message that contain one node."""
    kinds = (NodeId, NodeId | None, Peer)
    texts = {"reason", "store", "address"}
    return [
        field.name
        for field in fields(kind)
        if (field.type in kinds and field.name not in texts) or field.name == "sender"
    ]


@pytest.mark.parametrize("kind", WIRE_TYPES)
def test_message_that_names_one_node_is_bound_to_its_sender_or_listed(
    kind: type[WireMessage],
) -> None:
    assert bool(of_one_node(kind)) == (kind in CLAIMS or kind in SUBJECTS)


def test_messages_with_a_sender_are_covered_by_the_field_name() -> None:
    named = {kind for kind in WIRE_TYPES if any(f.name == "sender" for f in fields(kind))}
    handing_over = {CheckHeld, Held, Draining, RequestHandover, HandoverDone}
    comparing = {CheckTrie, CheckAndPublish, TrieEqual, IHave, Want}
    assert named == {CheckLabel} | comparing | handing_over
    assert set(CLAIMS) == named | {
        Subscribe,
        Unsubscribe,
        GetConfiguration,
        Introduce,
        RemoveConnections,
        Digest,
    }


@pytest.mark.parametrize(
    "sample",
    [each for each in SAMPLES if type(each) in CLAIMS and each != Unsubscribe(None)],
    ids=lambda sample: type(sample).__name__,
)
def test_message_is_accepted_from_the_named_sender(sample: WireMessage) -> None:
    accepted = [peer for peer in ("a", "b", "c") if not names_another(sample, peer)]
    assert len(accepted) == 1
