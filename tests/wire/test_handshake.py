"""Greetings: the first frame on every connection."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.errors import HandshakeError
from skipring.wire.framing import CONTROL, DATA, Frame, frame
from skipring.wire.handshake import (
    VERSION,
    Hello,
    Role,
    check_greeting,
    encode_greeting,
    version_in,
)
from tests.support.machines import unhurried
from tests.support.strategies import node_names
from tests.wire.samples import ADDRESS, addresses, the_frame

GREETING = Hello(node="a", address=ADDRESS, role=Role.NODE, incarnation=7, nonce=9)
# Bytes sent by this version. They stay readable: never change them, only add to them.
VERSION_5 = {
    "a node": (
        "000000240097a8736b697072696e6705a161ae3132372e302e302e313a37343030a46e6f64650709",
        GREETING,
    ),
    "a supervisor": (
        "0000002c0097a8736b697072696e6705aa73757065727669736f72a75b3a3a315d3a31aa73757065727669736f720000",
        Hello(node="supervisor", address="[::1]:1", role=Role.SUPERVISOR),
    ),
    "a client": (
        "000000180097a8736b697072696e6705a163a0a6636c69656e740000",
        Hello(node="c", address="", role=Role.CLIENT),
    ),
}


# Sent by older versions, whose next fields differ; a peer of one is refused with both versions.
OLDER = {
    1: "000000220095a8736b697072696e6701a161ae3132372e302e302e313a37343030a46e6f6465",
    2: "000000240097a8736b697072696e6702a161ae3132372e302e302e313a37343030a46e6f64650709",
    3: "000000240097a8736b697072696e6703a161ae3132372e302e302e313a37343030a46e6f64650709",
    4: "000000240097a8736b697072696e6704a161ae3132372e302e302e313a37343030a46e6f64650709",
}


def body(*fields: object) -> Frame:
    return Frame(CONTROL, msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(("written", "greeting"), VERSION_5.values(), ids=VERSION_5)
def test_stored_greetings_are_read_and_new_ones_are_equal(written: str, greeting: Hello) -> None:
    assert check_greeting(the_frame(bytes.fromhex(written))) == greeting
    assert encode_greeting(greeting).hex() == written


@pytest.mark.parametrize(("version", "written"), OLDER.items())
def test_stored_greetings_of_older_versions_are_refused(version: int, written: str) -> None:
    data = bytes.fromhex(written)
    assert version_in(data) == version
    with pytest.raises(HandshakeError, match=rf"version {version} .* version {VERSION}$"):
        check_greeting(the_frame(data))


@unhurried
@given(node_names(), addresses(), st.sampled_from(Role))
def test_greeting_survives_a_round_trip(node: str, address: str, role: Role) -> None:
    greeting = Hello(node=node, address=address, role=role)
    assert check_greeting(the_frame(encode_greeting(greeting))) == greeting


def test_additions_of_a_later_revision_to_a_greeting_are_ignored() -> None:
    later = body("skipring", VERSION, "a", ADDRESS, "node", 7, 9, b"signature", {"token": [1, 2]})
    assert check_greeting(later) == GREETING


@pytest.mark.parametrize(("written", "greeting"), VERSION_5.values(), ids=VERSION_5)
def test_opening_greeting_ends_with_a_blank_line(written: str, greeting: Hello) -> None:
    opening = encode_greeting(greeting, is_opening=True)
    assert opening.endswith(b"\r\n\r\n")
    assert check_greeting(the_frame(opening)) == greeting
    assert opening[6:].startswith(bytes.fromhex(written)[6:])  # after the lengths it is the same


@pytest.mark.parametrize(
    ("data", "version"),
    [
        (encode_greeting(GREETING), VERSION),
        (encode_greeting(GREETING) + b"more", VERSION),
        (frame(msgspec.msgpack.encode(["skipring", 7, None]), CONTROL), 7),
        (encode_greeting(GREETING)[:-1], None),
        (frame(msgspec.msgpack.encode(["skiprope", 7]), CONTROL), None),
        (frame(b"\x91" * 1000, CONTROL), None),
        (b"HTTP/1.1 400 Bad Request\r\n", None),
        (b"", None),
    ],
)
def test_version_is_read_from_a_greeting_of_any_version(data: bytes, version: int | None) -> None:
    assert version_in(data) == version


def test_client_need_not_listen() -> None:
    client = Hello(node="a", address="", role=Role.CLIENT)
    assert check_greeting(the_frame(encode_greeting(client))) == client


@pytest.mark.parametrize("role", [Role.NODE, Role.SUPERVISOR])
def test_other_roles_need_a_listen_address(role: Role) -> None:
    with pytest.raises(HandshakeError, match="host:port"):
        encode_greeting(Hello(node="a", address="", role=role))
    with pytest.raises(HandshakeError, match="host:port"):
        check_greeting(body("skipring", VERSION, "a", "", role))


@pytest.mark.parametrize(
    "fields", [(), ("a", ADDRESS, "node"), ({"anything": 1},)], ids=["nothing", "alike", "else"]
)
@pytest.mark.parametrize("version", [0, 1, 2, VERSION + 1, 2**64 - 1, -1])
def test_other_version_is_refused_with_both_versions_named(
    version: int, fields: tuple[object, ...]
) -> None:
    with pytest.raises(HandshakeError, match=rf"version {version} .* version {VERSION}$"):
        check_greeting(body("skipring", version, *fields))


@pytest.mark.parametrize(
    "given_frame",
    [
        Frame(DATA, msgspec.msgpack.encode(["skipring", VERSION, "a", ADDRESS, "node"])),
        Frame(CONTROL, b""),
        Frame(CONTROL, b"\x92\xa1\xff\x01"),  # not UTF-8
        Frame(CONTROL, b"\x91" * 10_000),
        Frame(CONTROL, b"\x93\xa8skipring\x03" + b"\x91" * 10_000),
        body(),
        body("skipring"),
        body("skipring", "1"),
        body("skiprope", 1, "a", ADDRESS, "node"),
        body("skipring", VERSION),
        body("skipring", VERSION, "a", ADDRESS),
        body("skipring", VERSION, "a", ADDRESS, "ruler"),
        body("skipring", VERSION, "", ADDRESS, "node"),
        body("skipring", VERSION, "a b", ADDRESS, "node"),
        body("skipring", VERSION, "a" * 65, ADDRESS, "node"),
        body("skipring", VERSION, "a", "127.0.0.1", "node"),
        body("skipring", VERSION, "a", "x" * 9000 + ":1", "node"),
        body("skipring", VERSION, "a", ADDRESS, "node" * 4000),
    ],
)
def test_invalid_greeting_is_refused_in_one_sentence(given_frame: Frame) -> None:
    with pytest.raises(HandshakeError) as refused:
        check_greeting(given_frame)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 150


@unhurried
@given(st.binary(max_size=60), st.sampled_from([CONTROL, DATA]))
def test_arbitrary_bytes_are_refused_as_a_greeting(data: bytes, kind: Frame) -> None:
    with pytest.raises(HandshakeError):
        check_greeting(Frame(kind, data))


@unhurried
@given(st.data())
def test_greeting_with_a_wrong_byte_is_valid_or_refused(data: st.DataObject) -> None:
    damaged = bytearray(the_frame(encode_greeting(GREETING)).body)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        greeting = check_greeting(Frame(CONTROL, bytes(damaged)))
    except HandshakeError:
        return
    assert replace(greeting, node="a", address=ADDRESS, incarnation=7, nonce=9) == GREETING
