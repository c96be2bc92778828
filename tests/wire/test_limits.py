"""Limits of values on the wire."""

import pytest
from msgspec.structs import replace

from faults.samples import RECORD
from skipring.core.batches import RecordBatch, check_record
from skipring.core.limits import REASON_CHARACTERS_MAX, SHOWN_CHARACTERS_MAX, check_node, shown
from skipring.core.log_messages import Refused
from skipring.core.messages import PublishNew
from skipring.errors import MessageError
from skipring.wire.codec import decode, encode
from skipring.wire.limits import check_address, check_topic, one_line
from tests.wire.samples import the_frame

KIB = 1024


@pytest.mark.parametrize(
    "topic", ["a", " ", "x" * 255, "\u00e4" * 127, "a/b", "\u200b", "\U0001f600"]
)
def test_topic_of_1_to_255_bytes_is_accepted(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize(
    "topic", ["", "x" * 256, "\u00e4" * 128, "a\nb", "\0", "\x7f", "a\x9f", "\ud800", "x" * 10**6]
)
def test_other_topics_are_refused(topic: str) -> None:
    for _ in range(2):  # a refusal is repeated
        with pytest.raises(MessageError) as refused:
            check_topic(topic)
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 120


@pytest.mark.parametrize("node", ["a", "x" * 64, "A.b_c-9", "-", "supervisor"])
def test_node_name_of_1_to_64_plain_characters_is_accepted(node: str) -> None:
    check_node(node)


@pytest.mark.parametrize("node", ["", "x" * 65, "a b", "a\n", "\u00e4", "a/b", "\0" * 64, "\ud800"])
def test_other_node_names_are_refused(node: str) -> None:
    with pytest.raises(MessageError):
        check_node(node)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "localhost:65535", "[::1]:7400", "[::ffff:10.0.0.1]:80", "a-b.c:07"]
)
def test_address_of_host_and_port_is_accepted(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":1",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "host:123456",
        "host:-1",
        "host:1\n",
        "host:\u0663",  # a digit, but not an ASCII one
        "ho st:1",
        "http://host:1",
        "::1:7400",
        "[]:1",
        "x" * 254 + ":1",
        "h\u00f6st:1",
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(MessageError):
        check_address(address)


@pytest.mark.parametrize(
    "fields",
    [
        {"payload": b""},
        {"payload": bytes(512 * KIB)},
        {"key": None},
        {"key": bytes(KIB)},
        {"headers": {str(number): "" for number in range(64)}},
        {"headers": {"name": "\u00e4" * (4 * KIB - 2)}},
        {"time": 2**63 - 1},
        {"time": 0},
    ],
)
def test_record_inside_the_limits_is_accepted_and_survives_a_batch(
    fields: dict[str, object],
) -> None:
    record = replace(RECORD, **fields)
    check_record(record)
    batch = RecordBatch.of([record], publisher="a", first=0, topic="news")
    assert decode(the_frame(encode("news", PublishNew(batch)))).message == PublishNew(batch)
    assert batch.records() == (record,)


OUTSIDE: dict[str, dict[str, object]] = {
    "a payload of more than 512 KiB": {"payload": bytes(512 * KIB + 1)},
    "a key of more than 1 KiB": {"key": bytes(KIB + 1)},
    "65 headers": {"headers": {str(number): "" for number in range(65)}},
    "headers of more than 8 KiB": {"headers": {"name": "\u00e4" * (4 * KIB - 1)}},
    "lone surrogate": {"headers": {"name": "\ud800"}},
    "lone surrogate in a name": {"headers": {"\ud800": ""}},
    "a time of 2^63": {"time": 2**63},
    "a time below 0": {"time": -1},
}


@pytest.mark.parametrize("fields", OUTSIDE.values(), ids=OUTSIDE)
def test_record_outside_the_limits_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(MessageError) as refused:
        check_record(replace(RECORD, **fields))
    assert len(str(refused.value)) < 100


@pytest.mark.parametrize("text", ["", "abc", "\n\x1b[31m", "\ud800", "\u202e", "x" * 1000])
def test_shown_text_is_short_and_printable(text: str) -> None:
    assert shown(text).isprintable()
    assert shown(text).isascii()
    assert len(shown(text)) <= 10 * SHOWN_CHARACTERS_MAX + 5


@pytest.mark.parametrize("text", ["no space", "line\nline\x1b[31m", "\ud800", "x" * 1000])
def test_reason_from_any_text_is_accepted_by_the_receiver(text: str) -> None:
    refusal = Refused(1, one_line(text))
    assert decode(the_frame(encode("news", refusal))).message == refusal
    assert len(refusal.reason) == min(len(text), REASON_CHARACTERS_MAX)
