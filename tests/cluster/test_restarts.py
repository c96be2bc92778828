"""Peers that restart under the same name while the old link still seems open."""

from __future__ import annotations

import pytest

from skipring.net.peer import CROSSING_S
from tests.support.exchanges import (
    TransportHost,
    answering,
    call,
    greeting_of,
    hosts,
    is_dialling,
    link_of,
    note,
    running,
    turns,
)
from tests.support.rings import until


@pytest.mark.parametrize("name", ["0", "z"], ids=["smaller", "larger"])
@pytest.mark.usefixtures("loop")
async def test_restarted_peer_is_received_and_reached(name: str) -> None:
    """Restart a peer whose old link hangs for a while; the new link is used."""
    async with hosts("m") as (m,), call(m) as old:
        old.write(greeting_of(name) + note(1))
        await until(lambda: m.numbers(name) == [1])
        again = TransportHost(name)
        async with running(again):
            again.knows(m)
            again.links.send("m", note(2))
            await until(lambda: m.numbers(name) == [1, 2])
            m.links.send(name, note(3))
            await until(lambda: again.numbers("m") == [3])


@pytest.mark.parametrize(
    ("name", "age_s"), [("0", 0.0), ("0", CROSSING_S + 1), ("z", CROSSING_S + 1)]
)
async def test_restarted_peer_that_was_dialled_is_reached(name: str, age_s: float) -> None:
    """Restart a peer that vanished without notice behind a link of this age."""
    async with answering(greeting_of(name)) as (address, came), hosts("m") as (m,):
        m.book.learn({name: address})
        m.links.send(name, note(1))
        await until(lambda: m.links.is_linked(name) and len(came) == 1)
        link_of(m, name).began_s -= age_s
        again = TransportHost(name)
        async with running(again):
            again.knows(m)
            again.links.send("m", note(2))
            await until(lambda: m.numbers(name) == [2])
            m.links.send(name, note(3))
            await turns(50)
            await until(lambda: not is_dialling(m))
            assert link_of(m, name).is_dialled is False
