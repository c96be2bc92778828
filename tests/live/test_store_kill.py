"""A process killed during its commits loses nothing below its durable mark."""

import subprocess
import sys
from pathlib import Path
from random import Random
from threading import Timer

import pytest

from tests.storage.logs import CHAT, NEWS, offsets, opened

PROGRAM = """
import sys
from pathlib import Path
from tests.storage.logs import CHAT, NEWS, batch, opened

store = opened(Path(sys.argv[1]))
step = int(sys.argv[2])
while True:
    for topic in (NEWS, CHAT):
        log = store.log(topic)
        for _ in range(step):
            log.append(batch(log.end, topic=topic))
    store.commit()
    print(store.log(NEWS).durable_end, store.log(CHAT).durable_end, flush=True)
"""


TRIMMING = """
import sys
from pathlib import Path
from tests.storage.logs import CHAT, NEWS, batch, opened

store = opened(Path(sys.argv[1]))
step = int(sys.argv[2])
while True:
    for topic in (NEWS, CHAT):
        log = store.log(topic)
        for _ in range(step):
            log.append(batch(log.end, topic=topic))
        log.trim(log.end - 400)
        for offset in range(log.low, log.end - 100, 2):
            if offset % 100:
                log.remove(offset)
    store.commit()
    print(store.log(NEWS).durable_end, store.log(CHAT).durable_end, flush=True)
"""


def promised_before_death(
    directory: Path, step: int, lines: int, program: str = PROGRAM
) -> tuple[int, int]:
    """Run a program, kill it after ``lines`` commits; return its last complete line."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", program, str(directory), str(step)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        deadline = Timer(60, process.kill)
        deadline.start()
        try:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(lines)]
            process.kill()
            said += process.stdout.readlines()
        finally:
            deadline.cancel()
            process.kill()
    news, chat = [line for line in said if line.endswith("\n")][-1].split()
    return int(news), int(chat)


@pytest.mark.heavy
def test_kill_at_any_moment_keeps_every_durable_batch_and_invents_none(tmp_path: Path) -> None:
    rng = Random(9)
    epochs: set[tuple[int, int]] = set()
    for _ in range(8):
        step = rng.choice((1, 7, 100))
        ends = promised_before_death(tmp_path, step, lines=rng.randrange(1, 20))
        with opened(tmp_path) as store:
            for topic, promised in zip((NEWS, CHAT), ends, strict=True):
                log = store.log(topic)
                assert promised <= log.end <= promised + 2 * step
                assert offsets(log, topic) == list(range(0, log.end, 2))
            epochs.add((store.log(NEWS).epoch, store.log(CHAT).epoch))
            assert store.damage is None
    assert len(epochs) == 1


@pytest.mark.heavy
def test_kill_during_trims_loses_nothing_that_is_retained(tmp_path: Path) -> None:
    rng = Random(5)
    epochs: set[tuple[int, int]] = set()
    lows = {NEWS: 0, CHAT: 0}
    for _ in range(8):
        step = rng.choice((5, 20, 100))
        ends = promised_before_death(tmp_path, step, rng.randrange(5, 40), TRIMMING)
        with opened(tmp_path) as store:
            for topic, promised in zip((NEWS, CHAT), ends, strict=True):
                log = store.log(topic)
                assert promised <= log.end <= promised + 2 * step
                assert log.low >= lows[topic]
                lows[topic] = log.low
                found = set(offsets(log, topic))
                assert found <= set(range(log.low, log.end, 2))
                first = max(log.low, promised - 400)
                retained = [
                    o for o in range(first, log.end, 2) if not o % 100 or o >= log.end - 100
                ]
                assert set(retained) <= found
            epochs.add((store.log(NEWS).epoch, store.log(CHAT).epoch))
            assert store.damage is None
    assert len(epochs) == 1
    assert min(lows.values()) > 0
