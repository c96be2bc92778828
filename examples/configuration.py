"""Fan-out of configuration: every process gets every change, and late joiners get all of them.

    python examples/configuration.py                               # starts a small ring
    python examples/configuration.py --supervisor 127.0.0.1:7400   # joins a running ring

An operator changes settings. Four workers, each in its own process, follow the topic and keep the
newest value of every setting. Then a fifth worker starts, long after the changes, and gets the same
settings: a node that joins a topic receives its history from its neighbours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from secrets import token_hex

import skipring
from skipring.testing import Cluster

TOPIC = "configuration"
CHANGES = [
    ("timeout_s", 10),
    ("cache", "on"),
    ("timeout_s", 30),
    ("colour", "green"),
    ("cache", "off"),
]


def worker(url: str, tick_s: float, name: str, run: str) -> dict[str, object]:
    """Read the topic until all changes of this run have arrived; return the settings.

    Publications of different nodes have no common order, and repair may deliver some late. So the
    time of publication decides which value is the newest, not the order of arrival.
    """
    newest: dict[str, tuple[tuple[int, int], object]] = {}
    left = len(CHANGES)
    with (
        skipring.blocking.connect(url, tick_s=tick_s, name=f"{name}-{run}") as node,
        node.subscribe(TOPIC, start="all") as configuration,
    ):
        while left:
            change = configuration.read(timeout=60)
            if change is None:
                raise TimeoutError(
                    f"{name} has not received a change; {configuration.health().reasons}"
                )
            setting, age = change.key.decode(), (change.time, change.seq)
            if setting not in newest or age > newest[setting][0]:
                newest[setting] = (age, json.loads(change.payload))
            left -= change.headers.get("run") == run
    return {setting: value for setting, (_, value) in sorted(newest.items())}


async def run_example(url: str, tick_s: float) -> None:
    """Start four workers, publish the changes, then start a late worker."""
    run, names = token_hex(4), [f"worker-{number}" for number in range(1, 5)]
    with ProcessPoolExecutor(max_workers=4, mp_context=get_context("spawn")) as pool:
        work = partial(asyncio.get_running_loop().run_in_executor, pool, worker, url, tick_s)
        async with (
            skipring.connect(url, tick_s=tick_s, name=f"operator-{run}") as node,
            node.subscribe(TOPIC) as configuration,
        ):
            workers = [work(name, run) for name in names]
            for setting, value in CHANGES:
                payload, key = json.dumps(value).encode(), setting.encode()
                await configuration.publish(payload, key=key, headers={"run": run})
                print(f"operator: {setting} = {value}")
            settings = await asyncio.gather(*workers)
            late = await work("late-joiner", run)
    for name, found in zip([*names, "late-joiner"], [*settings, late], strict=True):
        print(f"{name}: {found}")
    assert all(found == late for found in settings)
    print("all five agree")


async def main() -> None:
    options = argparse.ArgumentParser(description="Fan-out of configuration.")
    options.add_argument("--supervisor", metavar="HOST:PORT", help="a running supervisor")
    supervisor = options.parse_args().supervisor
    if supervisor is not None:
        await run_example(f"skipring://{supervisor}", tick_s=1.0)
        return
    async with Cluster(n=3, topic=TOPIC, tick_s=0.1) as ring:
        await run_example(ring.url, tick_s=0.1)


if __name__ == "__main__":
    asyncio.run(main())
