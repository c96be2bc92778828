"""One that was started again under its name, while its old link seems to be there still."""

from __future__ import annotations

import pytest

from skipring.net.peer import CROSSING_S
from tests.support.exchanges import (
    LOOPS,
    Host,
    LoopFactory,
    answering,
    call,
    greeting_of,
    hosts,
    is_dialling,
    link_of,
    note,
    play,
    running,
    turns,
)
from tests.support.rings import until


@pytest.fixture(params=LOOPS.values(), ids=LOOPS)
def loop(request: pytest.FixtureRequest) -> LoopFactory:
    made: LoopFactory = request.param
    return made


@pytest.mark.parametrize("name", ["0", "z"], ids=["smaller", "larger"])
def test_one_that_was_started_again_under_its_name_is_heard_and_reached(
    name: str, loop: LoopFactory
) -> None:
    """Its old link hangs for a while, and the new one is used."""

    async def scene() -> None:
        async with hosts("m") as (m,), call(m) as old:
            old.write(greeting_of(name) + note(1))
            await until(lambda: m.numbers(name) == [1])
            again = Host(name)
            async with running(again):
                again.knows(m)
                again.links.send("m", note(2))
                await until(lambda: m.numbers(name) == [1, 2])
                m.links.send(name, note(3))
                await until(lambda: again.numbers("m") == [3])

    play(scene, loop)


@pytest.mark.parametrize(
    ("name", "age_s"),
    [
        ("0", 0.0),
        ("0", CROSSING_S + 1),
        ("z", CROSSING_S + 1),
    ],
)
def test_one_that_we_had_dialled_and_that_was_started_again_is_reached(
    name: str, age_s: float
) -> None:
    """Nobody has told us that the old process is gone; when it vanished its link was so old."""

    async def scene() -> None:
        async with answering(greeting_of(name)) as (address, came), hosts("m") as (m,):
            m.book.learn({name: address})
            m.links.send(name, note(1))
            await until(lambda: m.links.is_linked(name) and len(came) == 1)
            link_of(m, name).began_s -= age_s
            again = Host(name)
            async with running(again):
                again.knows(m)
                again.links.send("m", note(2))
                await until(lambda: m.numbers(name) == [2])
                m.links.send(name, note(3))
                await turns(50)
                await until(lambda: not is_dialling(m))
                assert link_of(m, name).is_dialled is False

    play(scene)
