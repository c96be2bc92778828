"""RPC messages: tags, sizes of the longest messages, and their table in docs/wire.md."""

from pathlib import Path

from skipring.core.labels import Label
from skipring.core.limits import REASON_CHARACTERS_MAX
from skipring.core.peers import Peer
from skipring.core.state import LivenessState
from skipring.wire.codec import encode, named_nodes
from skipring.wire.framing import CONTROL_BYTES_MAX
from skipring.wire.limits import CLONES_MAX, ENTRIES_MAX, LOCATED_MAX, SHORTCUTS_MAX
from skipring.wire.rpc import (
    RUNTIME_TYPES,
    WIRE_TYPES,
    DatabasePage,
    MemberList,
    NodeHealth,
    NodeStatus,
    tag_of,
)
from tools.wire_table import table_lines

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"
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
    "FetchRecords": 94,
    "ChaosPing": 96,
    "Overwrite": 97,
    "OverwriteDatabase": 98,
    "CorruptTrie": 99,
    "Forge": 100,
    "Isolate": 101,
    "Crash": 102,
    "ChaosAck": 103,
}


REMOVED = {77, 78}  # FetchPublications and PublicationPage of version 2: never used again


def test_tags_of_host_messages_are_stable() -> None:
    assert {kind.__name__: tag_of(kind) for kind in RUNTIME_TYPES} == TAGS


def test_every_tag_is_one_byte_and_unique() -> None:
    tags = [tag_of(kind) for kind in WIRE_TYPES]
    assert len(set(tags)) == len(tags)
    assert all(0 < tag < 128 for tag in tags)
    assert REMOVED.isdisjoint(tags)


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


# -- table in the docs ----------------------------------------------------------------------


def test_table_in_the_docs_equals_the_generated_one() -> None:
    lines = table_lines()
    written = PAGE.read_text(encoding="utf-8").splitlines()
    start = written.index(lines[0])
    end = next(at for at in range(start, len(written)) if not written[at].startswith("|"))
    assert written[start:end] == lines, (
        "docs/wire.md is stale: replace its table by what `python tools/wire_table.py` prints"
    )


def test_table_has_a_described_row_for_each_message() -> None:
    rows = [line.split(" | ") for line in table_lines()[2:]]
    assert [row[1] for row in rows] == [f"`{kind.__name__}`" for kind in WIRE_TYPES]
    assert all(row[-1].endswith(". |") for row in rows)
