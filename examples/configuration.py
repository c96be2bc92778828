"""Fan-out of configuration: every process has all settings, and late joiners get them too.

    python examples/configuration.py                               # starts a small ring
    python examples/configuration.py --supervisor 127.0.0.1:7400   # joins a running ring

An operator changes settings. Four workers, each in its own process, watch them until they have all
of the release. Then a fifth worker starts, long after the changes, and has the same settings.
"""

from __future__ import annotations

import argparse
import asyncio
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


def worker(url: str, tick_s: float, name: str, release: str) -> dict[str, object]:
    """Watch the settings until those of the release have arrived; return them."""
    with (
        skipring.blocking.connect(url, tick_s=tick_s, name=f"{name}-{release}") as node,
        node.keyvalue(TOPIC) as settings,
    ):
        for _ in settings.watch():
            found = {entry.key: entry.value for entry in settings.json.items()}
            if found == dict(CHANGES) | {"release": release}:
                return found
    raise RuntimeError("a watch ends only when its view is closed")


async def run_example(url: str, tick_s: float) -> None:
    """Start four workers, change the settings, then start a late worker."""
    release, names = token_hex(4), [f"worker-{number}" for number in range(1, 5)]
    with ProcessPoolExecutor(max_workers=4, mp_context=get_context("spawn")) as pool:
        work = partial(asyncio.get_running_loop().run_in_executor, pool, worker, url, tick_s)
        async with (
            skipring.connect(url, tick_s=tick_s, name=f"operator-{release}") as node,
            node.keyvalue(TOPIC) as settings,
        ):
            workers = [work(name, release) for name in names]
            for setting, value in CHANGES:
                await settings.json.put(setting, value)
                print(f"operator: {setting} = {value}")
            await settings.json.put("release", release)
            found = await asyncio.gather(*workers)
            late = await work("late-joiner", release)
    for name, each in zip([*names, "late-joiner"], [*found, late], strict=True):
        print(f"{name}: { {key: each[key] for key in sorted(each) if key != 'release'} }")
    assert all(each == late for each in found)
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
