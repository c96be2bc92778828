"""Formats: every message has one, which describes all of its fields."""

import pytest
from msgspec.structs import fields as struct_fields

from skipring.core.config import ProtocolConfig
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckAndPublish,
    CheckHeld,
    CheckTrie,
    Held,
    Publications,
    PublishMany,
    PublishNew,
)
from skipring.core.peers import Peer
from skipring.core.state import LivenessState
from skipring.wire.chaos import Forge, Isolate, Overwrite, OverwriteDatabase
from skipring.wire.codec import encode, named_nodes
from skipring.wire.formats import CLAIMS_BYTES_MAX, FORMATS, tag_of
from skipring.wire.framing import CONTROL_BYTES_MAX, DATA
from skipring.wire.limits import (
    CLONES_MAX,
    ENTRIES_MAX,
    LOCATED_MAX,
    REASON_CHARACTERS_MAX,
    SHORTCUTS_MAX,
)
from skipring.wire.monitor_rpc import ArrivalPage, SupervisorStatus
from skipring.wire.rpc import (
    RUNTIME_TYPES,
    WIRE_TYPES,
    ChangePage,
    DatabasePage,
    DeliveryPage,
    LogPage,
    MemberList,
    NodeHealth,
    NodeStatus,
    PublicationPage,
    Publish,
    RuntimeMessage,
    WireMessage,
)
from tests.wire.samples import SAMPLES

of_every_type = pytest.mark.parametrize("kind", WIRE_TYPES)


def test_every_message_has_a_format() -> None:
    assert tuple(FORMATS) == WIRE_TYPES


@of_every_type
def test_format_names_the_fields_of_its_message_in_order(kind: type[WireMessage]) -> None:
    assert list(FORMATS[kind].fields) == [field.name for field in struct_fields(kind)]


def test_only_publications_claims_inspections_and_damage_use_data_frames() -> None:
    in_data = {kind for kind, form in FORMATS.items() if form.frame_kind is DATA}
    seen = {DatabasePage, NodeStatus, PublicationPage, ChangePage, LogPage, DeliveryPage}
    seen |= {SupervisorStatus, ArrivalPage}
    damages = {Overwrite, OverwriteDatabase, Forge, Isolate}
    carried = {PublishNew, PublishMany, Publications, CheckTrie, CheckAndPublish, Publish}
    carried |= {CheckHeld, Held}
    assert in_data == carried | seen | damages


def test_more_claims_are_accepted_than_answered() -> None:
    assert 2 * ProtocolConfig().claims_bytes < CLAIMS_BYTES_MAX


@of_every_type
def test_named_nodes_of_a_message_are_found(kind: type[WireMessage]) -> None:
    (sample,) = (sample for sample in SAMPLES if type(sample) is kind)
    named = {
        "Subscribe": ("a",),
        "GetConfiguration": ("a",),
        "SetConfiguration": ("a",),
        "CheckLabel": ("a",),
        "Introduce": ("a",),
        "IntroduceShortcut": ("b",),
        "RemoveConnections": ("b",),
        "Digest": ("a",),
        "CheckTrie": ("a",),
        "CheckAndPublish": ("a",),
        "TrieEqual": ("a",),
        "IHave": ("a",),
        "Want": ("a",),
        **dict.fromkeys(("CheckHeld", "Held", "RequestHandover", "HandoverDone"), ("a",)),
        "Draining": ("a", "b"),
        "ReportUnresponsive": ("b",),
        "DatabasePage": ("a", "b"),
        "NodeStatus": ("b", "c", "c", "b", "d"),
        "Overwrite": ("b", "c", "e", "b", "d"),
        "OverwriteDatabase": ("a",),
    }
    assert named_nodes(sample) == named.get(kind.__name__, ())


# -- messages of the hosts -------------------------------------------------------------------

TAGS = {
    "FindMembers": 64,
    "MemberList": 65,
    "Publish": 70,
    "PublishAck": 71,
    "Refused": 72,
    "FetchDatabase": 73,
    "DatabasePage": 74,
    "GetNodeStatus": 75,
    "NodeStatus": 76,
    "FetchPublications": 77,
    "PublicationPage": 78,
    "FetchChanges": 79,
    "ChangePage": 80,
    "GetLogInfo": 81,
    "LogInfo": 82,
    "FetchLog": 83,
    "LogPage": 84,
    "FetchDeliveries": 85,
    "DeliveryPage": 86,
    "GetSupervisorStatus": 87,
    "SupervisorStatus": 88,
    "FetchArrivals": 89,
    "ArrivalPage": 90,
    "AskHolder": 91,
    "HolderReply": 92,
    "NameTaken": 93,
    "ChaosPing": 96,
    "Overwrite": 97,
    "OverwriteDatabase": 98,
    "CorruptTrie": 99,
    "Forge": 100,
    "Isolate": 101,
    "Crash": 102,
    "ChaosAck": 103,
}


def test_tags_of_host_messages_are_stable() -> None:
    assert {kind.__name__: tag_of(kind) for kind in RUNTIME_TYPES} == TAGS


def test_list_of_host_messages_equals_the_union() -> None:
    assert set(RUNTIME_TYPES) == set(RuntimeMessage.__args__)


def test_every_tag_is_one_byte_and_unique() -> None:
    tags = [tag_of(kind) for kind in WIRE_TYPES]
    assert len(set(tags)) == len(tags)
    assert all(0 < tag < 128 for tag in tags)


def test_maximum_of_requested_members_fits_into_a_frame() -> None:
    longest = {f"{number:064}": f"{'x' * 253}:65535" for number in range(LOCATED_MAX)}
    assert len(encode("x" * 255, MemberList(2**63 - 1, longest))) < CONTROL_BYTES_MAX


def test_longest_status_and_longest_page_fit_into_a_frame() -> None:
    names = [f"{number:064}" for number in range(max(3 * SHORTCUTS_MAX + 3, ENTRIES_MAX))]
    hints = dict.fromkeys(names, f"{'x' * 253}:65535")
    label, last = Label(2**64 - 1), Peer(Label(2**64 - 1), names[-1])
    status = NodeStatus(
        request=2**63 - 1,
        member=True,
        label=label,
        left=last,
        right=Peer(label, names[-2]),
        ring=Peer(label, names[-3]),
        shortcuts=tuple((label, name) for name in names[:SHORTCUTS_MAX]),
        silence=dict.fromkeys(
            names[SHORTCUTS_MAX : 2 * SHORTCUTS_MAX], LivenessState(2**63 - 1, 2**63 - 1, True)
        ),
        digests=dict.fromkeys(names[2 * SHORTCUTS_MAX : 3 * SHORTCUTS_MAX], 2**64 - 1),
        count=2**63 - 1,
        end=2**40 - 1,
        root=bytes(16),
        health=NodeHealth(
            time=2**63 - 1,
            silent=dict.fromkeys(names[:SHORTCUTS_MAX], 2**63 - 1),
            unlinked=tuple(names[:SHORTCUTS_MAX]),
            not_ready="x" * REASON_CHARACTERS_MAX,
            disk_error="x" * REASON_CHARACTERS_MAX,
            clones=(hints[names[0]],) * CLONES_MAX,
        ),
    )
    encode("x" * 255, status, {name: hints[name] for name in named_nodes(status)})
    entries = tuple(("1" * 512, name) for name in names[:ENTRIES_MAX])
    page = DatabasePage(2**63 - 1, 2**63 - 1, 2**64 - 1, 2**63 - 1, 2**63 - 1, entries, ())
    encode("x" * 255, page, {name: hints[name] for name in named_nodes(page)})
