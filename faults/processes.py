"""Live ring of real processes: its members, its state, and requests to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Final

from faults import requests
from faults.requests import TOPIC, Place
from skipring.admin.dev_cluster import ANY_PORT
from skipring.core.peers import SUPERVISOR
from skipring.errors import UnreachableError
from skipring.lab.processes import DEADLINE_S, TAIL_LINES, Processes, numbered
from skipring.world.format import parse_world
from skipring.world.legitimacy import publication_violations, violations
from skipring.world.snapshot import Snapshot

__all__ = ["SUPERVISOR", "LiveProcesses", "faults", "numbered"]

SOURCES: Final = Path(__file__).resolve().parents[1] / "src"


def run_cli(*words: str) -> str:
    """Run a skipring command to its end; return its output; fail unless it succeeds."""
    command = [sys.executable, "-m", "skipring", *words]
    done = subprocess.run(  # noqa: S603  (a fixed command)
        command, capture_output=True, timeout=DEADLINE_S, check=False, text=True
    )
    assert done.returncode == 0, f"{' '.join(words[:2])}: {done.stdout} {done.stderr}"
    return done.stdout


class LiveProcesses(Processes):
    """Supervisor and nodes as processes of the command line, inside a ``with`` block."""

    def __init__(
        self,
        directory: Path,
        *,
        tick_s: float = 0.5,
        has_metrics: bool = False,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        metrics = ("--metrics", ANY_PORT) if has_metrics else ()
        if environment is not None:  # the processes run the code of this tree
            paths = [path for path in (environment.get("PYTHONPATH"), str(SOURCES)) if path]
            environment = {**environment, "PYTHONPATH": os.pathsep.join(paths)}
        options = ("--tick", f"{tick_s}", *metrics, *options)
        super().__init__(directory, options, environment=environment)

    # -- starting and ending -------------------------------------------------------------------

    def start_supervisor(self, options: Sequence[str] = ()) -> None:
        """Start a supervisor with a database on disk, on a free port."""
        self.fork_supervisor(options)
        self.until_listening(SUPERVISOR)

    def start(
        self, *names: str, supervisor: str | None = None, options: Sequence[str] = ()
    ) -> None:
        """Start nodes that become members of the topic; return once all listen."""
        for name in names:
            self.fork_node(name, TOPIC, supervisor, options)
        self.until_listening(*names)

    def run(self, name: str, *words: str) -> None:
        """Start another command or a Python program that runs until it is killed."""
        self.fork(name, words)

    def delete_data(self, name: str) -> None:
        """Delete the data directory of a killed process."""
        assert name in self.ended
        rmtree(self.data(name))

    # -- observations --------------------------------------------------------------------------

    def place(self, name: str) -> Place:
        """Return the name of a node and its address."""
        return name, self.running[name].address

    def evicted(self) -> list[str]:
        """Return the nodes that the supervisor has evicted, in order."""
        return [str(line["node"]) for line in self.events(SUPERVISOR, "evicted")]

    def metric(self, name: str, metric: str, **labels: str) -> float:
        """Return the value of a metric of a process."""
        return requests.metric(self.metrics_address(name), metric, **labels)

    def ticks(self, name: str) -> int:
        """Return the number of ticks of a process."""
        return int(self.metric(name, "skipring_ticks_total"))

    def not_ready(self, name: str) -> str:
        """Return the reason why a process is not ready; an empty text if it is ready."""
        return requests.not_ready(self.metrics_address(name))

    # -- the ring ------------------------------------------------------------------------------

    def world(self) -> Snapshot:
        """Return the state of the topic, as ``skipring ring --json`` requests it."""
        return requests.snapshot_of(self.running[SUPERVISOR].address)

    def world_by_command(self) -> Snapshot:
        """Return the state of the topic, from ``skipring ring --json`` itself."""
        supervisor = self.running[SUPERVISOR].address
        return parse_world(run_cli("ring", TOPIC, "--json", "--supervisor", supervisor).encode())

    def publish(self, name: str, *payloads: bytes) -> list[bytes]:
        """Publish through a node; return the ids once it has acknowledged them."""
        return requests.publish_through(self.place(name), payloads)

    def stored(self, name: str) -> set[bytes]:
        """Return the ids of all publications that a node holds."""
        found = requests.batches_at(self.place(name))
        return {key for each in found for key in each.record_ids()}

    def until_legitimate(
        self, inspect: Callable[[], Snapshot] | None = None, *, with_publications: bool = True
    ) -> Snapshot:
        """Wait until all running nodes are members of a legitimate ring and in sync."""
        seen: Snapshot | None = None
        wrong: list[str] = []

        def is_legitimate() -> bool:
            nonlocal seen, wrong
            try:
                seen = (inspect or self.world)()
            except UnreachableError as error:
                seen, wrong = None, [str(error)]
                return False
            wrong = faults(seen, self.nodes, with_publications=with_publications)
            return not wrong

        self.until(is_legitimate, lambda: "\n".join(wrong[:TAIL_LINES]))
        assert seen is not None
        return seen


def faults(seen: Snapshot, nodes: list[str], *, with_publications: bool = True) -> list[str]:
    """Return sentences about the faults of a ring that should contain these nodes."""
    members = {name for name, state in seen.subscribers.items() if state.member}
    missing = [f"{name} is not in the ring" for name in nodes if name not in members]
    judges = (violations, publication_violations) if with_publications else (violations,)
    return missing + [str(fault) for judge in judges for fault in judge(seen)]
