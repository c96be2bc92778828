"""A process killed during its commits loses nothing below its durable mark."""

import subprocess
import sys
from pathlib import Path
from random import Random
from threading import Timer

import pytest

from skipring.storage.durable_mark import losses_of
from skipring.storage.store import PublicationStore
from tests.storage.stored import CHAT, NEWS, offsets

PROGRAM = """
import sys
from pathlib import Path
from skipring.storage.store import PublicationStore
from tests.storage.stored import CHAT, NEWS, publication

store = PublicationStore.open(Path(sys.argv[1]))
step = int(sys.argv[2])
while True:
    for topic in (NEWS, CHAT):
        archive = store.archive(topic)
        for offset in range(archive.end, archive.end + step):
            archive.write(offset, publication(offset, topic))
    store.commit()
    print(store.archive(NEWS).durable_end, store.archive(CHAT).durable_end, flush=True)
"""


def promised_before_death(directory: Path, step: int, lines: int) -> tuple[int, int]:
    """Run the program, kill it after ``lines`` commits; return its last complete line."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", PROGRAM, str(directory), str(step)]
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
def test_kill_at_any_moment_keeps_every_durable_publication_and_invents_none(
    tmp_path: Path,
) -> None:
    rng = Random(9)
    for _ in range(6):
        step = rng.choice((1, 7, 100))
        news, chat = promised_before_death(tmp_path, step, lines=rng.randrange(1, 20))
        with PublicationStore.open(tmp_path) as store:
            for topic, promised in ((NEWS, news), (CHAT, chat)):
                archive = store.archive(topic)
                assert promised <= archive.end <= promised + step
                assert offsets(store, topic) == list(range(archive.end))
                assert losses_of(archive.epoch) == 0
            assert store.recovery.damage is None
