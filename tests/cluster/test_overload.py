"""Peers that do not read or have vanished: they do not slow down other members."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from skipring.core.peers import NodeId
from skipring.storage.store import LogStore
from tests.support.attacks import resident_bytes
from tests.support.exchanges import LOOPS, play
from tests.support.proxies import Cut, ProxiedRing
from tests.support.rings import TOPIC, until

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
QUICK = ["n0", "n1", "n2"]
SLOW = "slow"
PAYLOAD_BYTES = 16 * 1024
AT_ONCE = 25
WARM_UP, COUNT = 1000, 6400  # 100 MB are published, more than may be kept
GROWTH_BYTES_MAX = 80 << 20  # two queues of 16 MB to the slow node, twice with their buffers
DEADLINE_S = 240.0


class Forgetful(list[bytes]):
    """Deliveries of an application that keeps nothing."""

    def extend(self, payloads: Iterable[bytes]) -> None:
        """Drop the payloads."""


@asynccontextmanager
async def stored_ring(directory: Path, tick_s: float) -> AsyncIterator[ProxiedRing]:
    """Yield a ring that stores on disk, so that memory contains only queued data."""
    async with AsyncExitStack() as stack:
        # Opened first, so that they are closed last: a node still writes while it stops.
        stores = {
            name: stack.enter_context(LogStore.open(directory / name)) for name in (*QUICK, SLOW)
        }
        ring = ProxiedRing(tick_s)
        await ring.start()
        stack.push_async_callback(ring.stop)
        for name, store in stores.items():
            ring.delivered[name] = Forgetful()
            await ring.join(name, store)
        await ring.wait_healthy()
        yield ring


def sizes(ring: ProxiedRing) -> dict[NodeId, int]:
    """Return the number of publications of each node."""
    machines = {name: node.machine(TOPIC) for name, node in ring.nodes.items()}
    logs = {name: machine.replica.log for name, machine in machines.items() if machine is not None}
    return {name: log.records for name, log in logs.items()}


async def publish(ring: ProxiedRing, start: int, count: int) -> int:
    """Publish through one node as fast as it accepts; return the peak memory."""
    most = 0
    for first in range(start, start + count, AT_ONCE):
        made = (number.to_bytes(PAYLOAD_BYTES, "big") for number in range(first, first + AT_ONCE))
        await asyncio.gather(*(ring.publish("n0", payload) for payload in made))
        most = max(most, resident_bytes())
    return most


def stop_reading(ring: ProxiedRing) -> Callable[[], None]:
    """Make the slow node stop reading on all links; return the function that resumes it."""
    links = ring.nodes[SLOW].links
    transports = [link.transport for link in links.connections if link.transport is not None]
    for transport in transports:
        transport.pause_reading()

    def go_on() -> None:
        for transport in transports:
            transport.resume_reading()

    return go_on


def vanish(ring: ProxiedRing) -> Callable[[], None]:
    """Drop all traffic from and to the slow node without notice."""
    ring.network.cut(lambda one, other: SLOW in (one, other), Cut.BLACKHOLE)
    return ring.network.heal


async def overload(directory: Path, harm: Callable[[ProxiedRing], Callable[[], None]]) -> None:
    async with stored_ring(directory, tick_s=0.5) as ring:
        await publish(ring, 0, WARM_UP)
        await until(lambda: set(sizes(ring).values()) == {WARM_UP})
        before = resident_bytes()
        go_on = harm(ring)
        most = await publish(ring, WARM_UP, COUNT)
        await until(lambda: all(sizes(ring)[name] == WARM_UP + COUNT for name in QUICK))
        most = max(most, resident_bytes())
        sys.stdout.write(f"grown by {(most - before) / 2**20:.0f} MB\n")
        sys.stdout.flush()
        assert sizes(ring)[SLOW] < WARM_UP + COUNT, "what it was sent waits for it somewhere"
        assert most - before <= GROWTH_BYTES_MAX
        go_on()
        await until(lambda: sizes(ring)[SLOW] == WARM_UP + COUNT, lambda: str(sizes(ring)))
        sys.stdout.write(f"grown by {(resident_bytes() - before) / 2**20:.0f} MB in the end\n")


def main(directory: str, harm: str, loop: str) -> None:
    """Run the scene in a process of its own, whose memory is measured."""
    from tests.support import rings  # noqa: PLC0415

    rings.DEADLINE_S = 120.0
    play(lambda: overload(Path(directory), globals()[harm]), LOOPS[loop])


@pytest.mark.parametrize(
    ("loop", "harm"),
    [
        ("uvloop", "stop_reading"),
        pytest.param("uvloop", "vanish", marks=pytest.mark.slow),
        pytest.param("asyncio", "stop_reading", marks=pytest.mark.slow),
        pytest.param("asyncio", "vanish", marks=pytest.mark.slow),
    ],
)
def test_memory_is_bounded_and_others_are_served_while_a_peer_does_not_read(
    loop: str, harm: str, tmp_path: Path
) -> None:
    code = "import sys; from tests.cluster.test_overload import main; main(*sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), harm, loop],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
