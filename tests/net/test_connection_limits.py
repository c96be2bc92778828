"""Connection limits: clients leave connections for nodes, and no name uses all of them."""

from __future__ import annotations

from contextlib import suppress

import pytest

from skipring.net import connection_limits as connection_limits_module
from skipring.net.connection_limits import (
    CLIENT_LINKS_MAX,
    IDLE_CLIENT_S,
    LINKS_MAX,
    NAME_LINKS_MAX,
    ConnectionLimits,
)
from skipring.wire.handshake import Role
from tests.support.exchanges import (
    Caller,
    LoopFactory,
    TransportHost,
    call,
    greeting_of,
    hosts,
    link_of,
    logged,
    note,
    play,
    running,
    the_line,
)
from tests.support.papers import Papers, node
from tests.support.rings import until

CLIENT = Role.CLIENT


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


class IdleConnection:
    """A connection with the time of its last use."""

    def __init__(self, used_s: float = 0.0) -> None:
        self.used_s = used_s
        self.has_given_way = False

    def check_deadlines(self, now: float) -> None:
        """Do nothing: no data was sent or received since."""

    def make_room(self) -> None:
        self.has_given_way = True


def client(
    places: ConnectionLimits, name: str, now_s: float = 0.0, link: IdleConnection | None = None
) -> bool:
    link = link or IdleConnection(now_s)
    return places.occupy(link, name, is_client=True, now_s=now_s) is None


def member(places: ConnectionLimits, name: str) -> bool:
    return places.occupy(IdleConnection(), name, is_client=False, now_s=0.0) is None


# -- limits ----------------------------------------------------------------------------------------


def test_clients_leave_connections_for_nodes() -> None:
    places = ConnectionLimits()
    clients = [client(places, f"c{number}") for number in range(4200)]
    assert sum(clients) == CLIENT_LINKS_MAX
    nodes = [member(places, f"n{number}") for number in range(LINKS_MAX)]
    assert sum(nodes) == LINKS_MAX - CLIENT_LINKS_MAX
    assert len(places) == LINKS_MAX


@pytest.mark.parametrize("is_client", [True, False])
def test_each_name_has_its_own_limit(is_client: bool) -> None:
    places = ConnectionLimits()
    occupy = client if is_client else member
    assert sum(occupy(places, "a") for _ in range(1000)) == NAME_LINKS_MAX
    assert occupy(places, "b")


def test_clients_of_a_name_do_not_count_for_its_node() -> None:
    places = ConnectionLimits()
    for _ in range(1000):
        client(places, "a")
    assert member(places, "a")


def test_longest_idle_client_gives_way() -> None:
    places = ConnectionLimits()
    links = [IdleConnection(used_s=float(number)) for number in range(CLIENT_LINKS_MAX)]
    for number, link in enumerate(reversed(links)):
        assert client(places, f"c{number}", 0.0, link)
    now_s = IDLE_CLIENT_S + 0.5
    assert client(places, "new", now_s)
    assert [link for link in links if link.has_given_way] == [links[0]]
    assert not client(places, "newer", now_s), "the others were used a moment ago"


def test_released_connections_are_available_again() -> None:
    places, links = ConnectionLimits(), [IdleConnection() for _ in range(NAME_LINKS_MAX)]
    for _ in range(2):
        assert all(client(places, "a", 0.0, link) for link in links)
        assert not client(places, "a")
        for link in links:
            places.release(link)
            places.release(link)
        assert len(places) == 0


# -- connections -----------------------------------------------------------------------------------


async def enter(host: TransportHost, caller: Caller, name: str, role: Role = CLIENT) -> None:
    """Send the handshake and wait until it is read."""
    before = len(host.links.places)
    caller.write(greeting_of(name, role))
    await until(lambda: len(host.links.places) > before)


async def words_to(caller: Caller) -> bytes:
    """Return all bytes that the other side sends until it closes the connection."""
    words = b""
    with suppress(ConnectionError):
        while more := await caller.read():
            words += more
    return words


def test_node_is_accepted_while_clients_use_all_their_connections(
    monkeypatch: pytest.MonkeyPatch, loop: LoopFactory
) -> None:
    monkeypatch.setattr(connection_limits_module, "CLIENT_LINKS_MAX", 2)

    async def scene() -> None:
        async with hosts("a", "b") as (a, b), call(a) as one, call(a) as two, call(a) as three:
            await enter(a, one, "c1")
            await enter(a, two, "c2")
            three.write(greeting_of("c3", CLIENT))
            assert b"there are 2 connections of clients, which is the limit" in await words_to(
                three
            )
            assert a.counts == {"too many connections": 1}
            line = the_line(lines, "connection_refused")
            assert line["address"] == three.address
            assert line["detail"] == "there are 2 connections of clients, which is the limit"
            b.knows(a)
            b.links.send("a", note(1))
            await until(lambda: a.numbers("b") == [1])

    with logged() as lines:
        play(scene, loop)


@pytest.mark.usefixtures("loop")
async def test_idle_client_gives_way_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits_module, "CLIENT_LINKS_MAX", 1)
    monkeypatch.setattr(connection_limits_module, "IDLE_CLIENT_S", -1.0)
    async with hosts("a") as (a,), call(a) as one, call(a) as two:
        await enter(a, one, "c1")
        two.write(greeting_of("c2", CLIENT))
        assert b"another client needs a place" in await words_to(one)
        await until(lambda: a.links.is_linked("client/c2#2"))
        assert a.counts == {"idle client": 1}


@pytest.mark.usefixtures("loop")
async def test_certificate_counts_for_all_names_below_it(
    papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits_module, "NAME_LINKS_MAX", 2)
    a = node(papers, "a")
    b, c = (papers.of(name).client_context() for name in "bc")
    async with running(a), call(a, b) as one, call(a, b) as two, call(a, b) as three:
        await enter(a, one, "b.1")
        await enter(a, two, "b.2")
        three.write(greeting_of("b.3", CLIENT))
        assert b"b has 2 connections of clients" in await words_to(three)
        async with call(a, c) as other:
            await enter(a, other, "c")
        assert a.counts == {"too many connections": 1}


@pytest.mark.usefixtures("loop")
async def test_refused_node_knows_the_reason_and_redials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits_module, "NAME_LINKS_MAX", 0)
    async with hosts("a", "b") as (a, b):
        b.knows(a)

        def why() -> str:
            b.links.send("a", note(1))
            return b.links.why_unreachable("a") or ""

        reason = "b has 0 connections of nodes, which is the limit"
        sentence = f"{a.address} refuses connections of this process: {reason}"
        await until(lambda: why() == sentence)
        await until(lambda: bool(why()) and b.links.peer("a").failures >= 3)
        monkeypatch.setattr(connection_limits_module, "NAME_LINKS_MAX", 1)
        await until(lambda: not why() and link_of(b, "a") is not None and bool(a.got))
