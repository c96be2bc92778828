"""Disk and memory of members of a topic with a limit in bytes (``skipring bench retention``).

One client publishes a multiple of the limit and reads it. Segments on the disk and resident memory
of each member are sampled meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import linear_regression
from typing import Final

import skipring
from skipring.lab.bench.harness import run_directory
from skipring.lab.bench.report import Figures, Row
from skipring.lab.bench.run import TOPIC
from skipring.lab.bench.servers import BenchProcesses
from skipring.lab.usage import resident_bytes_of, run_alone
from skipring.net.event_loop import new_loop

MIB: Final = 1 << 20
PAYLOAD_BYTES: Final = 16 * 1024
GROUP: Final = 64  # payloads that are published together: 1 MiB
TICK_S: Final = 0.25  # of the client
READ_S: Final = 120.0
CLOCKS_S: Final = 3.0  # Members drop nothing before they know their neighbours' clocks: two ticks.


def measure(*, limit_mib: int, times: int, members: int) -> Iterator[Row]:
    """Yield the largest disk share of any member, and the growth of memory in the last half."""
    with run_directory() as directory, BenchProcesses(directory) as processes:
        address = processes.start_supervisor()
        for number in range(members):
            processes.start_node(f"bench.n{number}")
        pids = {
            name: each.pid for name, each in processes.running.items() if name.startswith("bench.n")
        }
        found = run_alone(_run, address, directory, pids, limit_mib, times)
    yield {"job": "retention", "limit_mib": limit_mib, "published_mib": limit_mib * times} | found


def _run(
    address: str, directory: Path, pids: Mapping[str, int], limit_mib: int, times: int
) -> Figures:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_measure(address, directory, pids, limit_mib, times))


async def _measure(
    address: str, directory: Path, pids: Mapping[str, int], limit_mib: int, times: int
) -> Figures:
    limit, disks, memory = limit_mib * MIB, list[int](), list[tuple[int, int]]()
    payloads, read = [bytes(PAYLOAD_BYTES)] * GROUP, 0
    async with (
        skipring.connect(
            address, data_dir=directory / "client", tick_s=TICK_S, drain_s=0, policy_delay_s=0
        ) as node,
        node.subscribe(TOPIC, start="new") as topic,
    ):
        await node.charter(TOPIC).set(max_bytes=limit)
        await topic.synced(READ_S)  # a member that receives rows first applies it after a delay
        await asyncio.sleep(CLOCKS_S)
        for number in range(limit_mib * times):
            await topic.publish_many(payloads)
            read += len(await topic.read_available())
            disks.append(max(_disk_bytes(directory)))
            memory.append((number, max(map(resident_bytes_of, pids.values()))))
        await topic.synced(READ_S)
        read += len(await topic.read_available())
        disks.append(max(_disk_bytes(directory)))
        last = memory[len(memory) // 2 :]
        slope = linear_regression(*zip(*last, strict=True)).slope
    return {
        "disk_share_max": max(disks) / limit,
        "disk_share_end": disks[-1] / limit,
        "rss_mib_max": max(size for _, size in memory) / MIB,
        "rss_kib_per_mib": slope / 1024,
        "read_share": (read + topic.expired) / (limit_mib * times * GROUP),
    }


def _disk_bytes(directory: Path) -> list[int]:
    """Return the size of the segments in each data directory."""
    sizes: dict[str, int] = {}
    for file in directory.rglob("*.log"):
        name = file.relative_to(directory).parts[0]
        try:
            sizes[name] = sizes.get(name, 0) + file.stat().st_size
        except FileNotFoundError:  # it was deleted meanwhile
            continue
    return list(sizes.values()) or [0]
