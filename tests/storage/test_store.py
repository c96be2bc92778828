"""Store of all logs: topics, commits, and any sequence of writes and damage."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.errors import StorageError, StoreBusyError
from skipring.storage import store as store_module
from skipring.storage import topic_log
from skipring.storage.segment_format import encode_entry
from skipring.storage.store import FILES_MAX, TOPICS
from skipring.storage.topic_directory import QUARANTINE, RECORD_FILE, directory_name
from skipring.storage.topic_log import SegmentLog
from tests.storage.logs import (
    NEWS,
    SMALL,
    FailingDisk,
    batch,
    made,
    offsets,
    opened,
    segments,
    state,
    topic_path,
    write,
)


def test_topics_have_separate_logs_and_one_store_id(tmp_path: Path) -> None:
    topics = ["", "a/b", "A/B", "é" * 255, "..", "x" * 255]
    with opened(tmp_path) as store:
        for number, topic in enumerate(topics, 1):
            for _ in range(number):
                store.log(topic).append(batch(store.log(topic).end, topic=topic))
        assert store.unwritten == 2 * sum(range(1, len(topics) + 1))
        store.commit()
        assert store.unwritten == 0
        ids = {store.log(topic).store for topic in topics}
        epochs = {topic: store.log(topic).epoch for topic in topics}
        assert ids == {store.id}
    with opened(tmp_path) as store:
        assert store.topics == sorted(topics)
        assert store.id in ids
        for number, topic in enumerate(topics, 1):
            log = store.log(topic)
            assert (log.topic, log.store, log.epoch) == (topic, store.id, epochs[topic])
            assert offsets(log, topic) == list(range(0, 2 * number, 2))
        assert store.log("new").store in ids
        assert len(set(epochs.values())) == len(topics)


def test_topic_without_batches_leaves_no_files(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.log(NEWS).end == 0
        assert store.log(NEWS).read(0) is None
        assert list(store.log(NEWS).entries()) == []
        assert store.log(NEWS).chain_at(0) == bytes(12)
        store.commit()
    assert list((tmp_path / TOPICS).iterdir()) == []


def test_more_topics_than_open_files_are_committed_together(tmp_path: Path) -> None:
    topics = [f"topic{number}" for number in range(3 * FILES_MAX)]
    with opened(tmp_path) as store:
        for _ in range(2):
            for topic in topics:
                store.log(topic).append(batch(store.log(topic).end, topic=topic))
            store.commit()
        assert len(list(Path("/proc/self/fd").iterdir())) < 3 * FILES_MAX
        for topic in topics:
            assert offsets(store.log(topic), topic) == [0, 2]
    with opened(tmp_path) as store:
        assert store.topics == sorted(topics)


def test_commit_touches_only_changed_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        for number in range(50):
            store.log(f"topic{number}").append(batch(0, topic=f"topic{number}"))
        store.commit()
        written: list[str] = []
        write_log = SegmentLog.write

        def recorded(log: SegmentLog) -> None:
            written.append(log.topic)
            write_log(log)

        monkeypatch.setattr(SegmentLog, "write", recorded)
        store.commit()
        assert written == []
        store.log("topic7").append(batch(2, topic="topic7"))
        store.log("topic9").discard(0)
        store.commit()
        assert sorted(written) == ["topic7", "topic9"]
        assert store.log("topic9").read(0) is None


def test_commit_includes_every_log_that_changed_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        before = [store.log(f"before{number}") for number in range(FILES_MAX + 1)]
        during = [store.log(f"during{number}") for number in range(2 * FILES_MAX)]
        for log in before:
            log.append(batch(0, topic=log.topic))
        write_log = SegmentLog.write

        def append_to_others(log: SegmentLog) -> None:
            while during:
                other = during.pop()
                other.append(batch(0, topic=other.topic))
            write_log(log)

        monkeypatch.setattr(SegmentLog, "write", append_to_others)
        store.commit()
        assert [log.durable_end for log in before] == [2] * len(before)
        store.commit()
        assert store.unwritten == 0


def test_failure_of_one_topic_does_not_confirm_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        logs = [store.log(topic) for topic in ("a", "b", "c")]
        for log in logs:
            log.append(batch(0, topic=log.topic))
        calls: list[int] = []
        sync = topic_log.sync_data

        def failing(file: int) -> None:
            calls.append(file)
            if len(calls) == 2:
                raise OSError(5, "disk error")
            sync(file)

        with monkeypatch.context() as context:
            context.setattr(topic_log, "sync_data", failing)
            with pytest.raises(StorageError, match="disk error"):
                store.commit()
        assert sorted(log.durable_end for log in logs) == [0, 0, 2]
        store.commit()
        assert [log.durable_end for log in logs] == [2, 2, 2]
    with opened(tmp_path) as store:
        assert all(offsets(store.log(topic), topic) == [0] for topic in ("a", "b", "c"))


def test_store_is_used_by_one_process_at_a_time(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from skipring.storage.store import LogStore\n"
        "try: LogStore.open(Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    with opened(tmp_path) as store:
        with pytest.raises(StoreBusyError, match="use another data directory"):
            opened(tmp_path)
        other = subprocess.run(
            [sys.executable, "-c", program, tmp_path],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert other.stdout.startswith("StoreBusyError")
        write(store, 1)
    store.close()  # a second time
    assert state(tmp_path)[0] == [0]


def test_store_of_version_0_1_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "publications.sqlite3"
    old.write_bytes(b"SQLite format 3\0")
    with pytest.raises(StorageError) as refused:
        opened(tmp_path)
    text = str(refused.value)
    assert text.startswith(f"{old}: written by skipring 0.1")
    assert "use another data directory" in text
    assert text.endswith("or remove the file")
    assert [path.name for path in tmp_path.iterdir()] == [old.name]
    old.unlink()
    assert state(tmp_path)[:2] == ([], 0)


def test_store_id_is_kept_and_unique(tmp_path: Path) -> None:
    ids = []
    for name in ("a", "a", "b"):
        with opened(tmp_path / name) as store:
            write(store, 1)
            ids.append(store.id)
    assert ids[0] == ids[1] != ids[2]
    assert len(bytes.fromhex(ids[0])) == 16


def test_waiting_bytes_are_those_that_are_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        assert (store.waiting_bytes, store.longest_wait_s) == (0, math.inf)
        some = {topic: batch(0, topic=topic, size=500) for topic in ("a", "b")}
        for topic, each in some.items():
            store.log(topic).append(each)
        total = sum(len(each.body) for each in some.values())
        assert total <= store.waiting_bytes <= total + 200 * len(some)
        with monkeypatch.context() as context:
            FailingDisk(context).refused = "sync_data"
            with pytest.raises(StorageError):
                store.commit()
        assert store.waiting_bytes >= total
        store.commit()
        assert store.waiting_bytes == 0
        write(store, 1)
        store.log(NEWS).discard(0)
        assert store.waiting_bytes >= len(batch(0).body)  # the commit writes them to the quarantine
        store.commit()
        assert store.waiting_bytes == 0


def test_segment_to_be_sealed_counts_as_waiting(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        log, path = store.log(NEWS), topic_path(tmp_path)
        seen: list[tuple[bool, bool]] = []
        for _ in range(20):
            log.append(batch(log.end))
            is_full = bool(segments(path)) and segments(path)[-1].stat().st_size >= SMALL
            seen.append((is_full, store.waiting_bytes >= SMALL))
            store.commit()
            assert store.waiting_bytes == 0
        assert set(seen) == {(False, False), (True, True)}


@pytest.mark.parametrize("slow", [0, 1])
def test_longest_wait_of_a_commit_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    now_s, syncs = 0.0, 0

    def sync(file: int) -> None:
        nonlocal now_s, syncs
        now_s += 5.0 if syncs % 2 == slow else 0.5
        syncs += 1

    with opened(tmp_path) as store:
        monkeypatch.setattr(store_module, "monotonic", lambda: now_s)
        monkeypatch.setattr(topic_log, "sync_data", sync)
        for topic in ("a", "b"):
            store.log(topic).append(batch(0, topic=topic))
        store.commit()
        assert (syncs, store.longest_wait_s) == (2, 5.0)
        store.commit()  # nothing to write
        assert store.longest_wait_s == 5.0


def test_wait_for_the_disk_includes_the_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0

    def sync(file: int) -> None:
        nonlocal now_s
        now_s += 5.0

    with opened(tmp_path) as store:
        write(store, 1)
        monkeypatch.setattr(store_module, "monotonic", lambda: now_s)
        monkeypatch.setattr(os, "fsync", sync)
        store.log(NEWS).discard(0)
        store.commit()
        assert store.longest_wait_s >= 5.0


def test_lost_records_are_described(tmp_path: Path) -> None:
    path = made(tmp_path, 20)
    with opened(tmp_path) as store:
        assert (store.damage, store.lost) == (None, 0)
    start, end = (int(each.stem) for each in segments(path)[:2])
    segments(path)[0].unlink()
    with opened(tmp_path) as store:
        assert store.damage == f"records lost: {end - start} of {NEWS}"
        assert store.lost == end - start
        assert store.log(NEWS).records == store.log(NEWS).end - end
    with opened(tmp_path) as store:
        assert (store.damage, store.lost) == (None, 0)


def test_close_waits_for_a_commit_in_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, resumed = Event(), Event()

    def paused(file: int) -> None:
        started.set()
        assert resumed.wait(60)

    store = opened(tmp_path)
    store.log(NEWS).append(batch(0))
    monkeypatch.setattr(topic_log, "sync_data", paused)
    committing, closing = Thread(target=store.commit), Thread(target=store.close)
    committing.start()
    assert started.wait(60)
    closing.start()
    closing.join(0.2)  # long enough for a close that does not wait
    is_closed_early = not closing.is_alive()
    resumed.set()
    for thread in (committing, closing):
        thread.join(60)
    assert not is_closed_early
    assert state(tmp_path)[0] == [0]


def test_files_in_place_of_directories_do_not_prevent_a_start(tmp_path: Path) -> None:
    (tmp_path / TOPICS).write_bytes(b"file")
    with opened(tmp_path) as store:
        assert store.topics == []
    (tmp_path / TOPICS / directory_name(NEWS)).write_bytes(b"file")
    with opened(tmp_path) as store:
        write(store, 1)
    assert state(tmp_path)[:2] == ([0], 2)
    (topic_path(tmp_path) / RECORD_FILE).unlink()
    (topic_path(tmp_path) / RECORD_FILE).mkdir()
    (topic_path(tmp_path) / QUARANTINE).write_bytes(b"file")
    assert state(tmp_path)[:2] == ([0], 2)


def test_copied_directory_of_a_topic_is_not_used(tmp_path: Path) -> None:
    path = made(tmp_path, 3)
    shutil.copytree(path, path.with_name("copy"))
    with opened(tmp_path) as store:
        assert store.topics == [NEWS]
        assert offsets(store.log(NEWS)) == [0, 2, 4]
    assert len(segments(path.with_name("copy"))) == 1


def test_environment_errors_are_translated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="directory which this user may write to"):
        opened(tmp_path / "file" / "store")
    made(tmp_path, 3)

    def refused(*args: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "pread", refused)
    with pytest.raises(StorageError, match="Permission denied"):
        opened(tmp_path)
    monkeypatch.undo()
    assert state(tmp_path)[0] == [0, 2, 4]  # the lock was released


# -- any sequence of operations --------------------------------------------------------------


@pytest.fixture(autouse=True, scope="module")
def _quick_disk() -> Iterator[None]:
    """Skip syncs: damage and crashes are simulated by changes of the files."""
    with pytest.MonkeyPatch.context() as context:
        context.setattr(os, "fsync", lambda file: None)
        context.setattr(topic_log, "sync_data", lambda file: None)
        yield


class CheckedStore:
    """Store whose batches are all different, and what may be read from it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = topic_path(directory)
        self.store = opened(directory)
        self.made = 0
        self.written: dict[int, set[RecordBatch]] = defaultdict(set)  # by offset
        self.expected: dict[int, RecordBatch] = {}  # intact and committed
        self.appended: dict[int, RecordBatch] = {}  # in memory, or left by a failed commit
        self.is_damaged = False
        self.epoch: int | None = None

    def append(self, count: int) -> None:
        log = self.store.log(NEWS)
        self.made += 1
        rows = [BatchRecord(f"{self.made}".encode(), time=self.made)] * count
        added = RecordBatch.of(rows, publisher="a", first=1000 * self.made, topic=NEWS)
        offset = log.append(added)
        self.written[offset].add(added)
        self.appended[offset] = added

    def commit(self) -> None:
        self.store.commit()
        self.expected |= self.appended
        self.appended = {}
        self.epoch = self.store.log(NEWS).epoch if self.expected else None

    def fail(self, number: int) -> None:
        """Commit while one call of the system fails."""
        with pytest.MonkeyPatch.context() as context:
            FailingDisk(context).fail_at = number
            try:
                self.commit()
            except StorageError:
                durable_end = self.store.log(NEWS).durable_end
                durable = {o: each for o, each in self.appended.items() if o < durable_end}
                self.expected |= durable
                self.appended = {o: b for o, b in self.appended.items() if o not in durable}

    def discard(self, number: int) -> None:
        known = sorted(self.expected)
        if known:
            offset = known[number % len(known)]
            self.store.log(NEWS).discard(offset)
            self.store.commit()
            self.expected |= self.appended
            self.appended = {}
            del self.expected[offset]

    def trim(self, place: int) -> None:
        log = self.store.log(NEWS)
        log.trim(place * log.durable_end // 100)
        self.commit()
        self.expected = {o: each for o, each in self.expected.items() if o >= log.low}

    def reopen(self) -> None:
        self.store.close()
        self._open()

    def _open(self) -> None:
        self.store = opened(self.directory)
        found = self._found()
        if not self.is_damaged:
            assert found.items() <= (self.expected | self.appended).items()
        assert self.expected.items() <= found.items()
        self.expected, self.appended = found, {}

    def _found(self) -> dict[int, RecordBatch]:
        log = self.store.log(NEWS)
        return {entry.offset: entry.batch for entry in log.read_range(0, log.end)}

    def damage(self, kind: str, number: int, place: int) -> None:
        self.reopen()
        self.store.close()
        files = segments(self.path)
        files += [self.path / RECORD_FILE] if (self.path / RECORD_FILE).exists() else []
        if files:
            self.is_damaged = True
            entries = self._entry_bytes()
            _damage(files[number % len(files)], kind, place)
            contents = [path.read_bytes() for path in segments(self.path)]
            for offset, data in entries.items():
                if not any(data in content for content in contents):
                    self.expected.pop(offset, None)
            if not (self.path / RECORD_FILE).exists() or kind != "flip":
                self.epoch = None
        self._open()

    def _entry_bytes(self) -> dict[int, bytes]:
        """Return the stored bytes of the expected batches."""
        with opened(self.directory) as store:
            found = {offset: store.log(NEWS).read(offset) for offset in self.expected}
        return {o: encode_entry(e) + e.batch.body for o, e in found.items() if e is not None}

    def check(self) -> None:
        log = self.store.log(NEWS)
        found = self._found()
        for offset, each in found.items():
            assert each in self.written[offset], "an invented batch"
        expected = self.expected | self.appended
        assert expected.items() <= found.items()
        if not self.is_damaged:
            assert found == expected
            assert self.epoch in (None, log.epoch)
        for offset, each in expected.items():
            assert [log.read(offset + n).batch for n in range(each.count)] == [each] * each.count
        assert {(each.id, offset) for offset, each in expected.items()} <= set(log.entries())
        assert max(expected, default=0) <= log.end


def _damage(path: Path, kind: str, place: int) -> None:
    data = path.read_bytes()
    at = place % (len(data) + 1)
    match kind:
        case "flip" if at < len(data):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << place % 8]) + data[at + 1 :])
        case "cut":
            path.write_bytes(data[:at])
        case "zero":
            path.write_bytes(data[:at] + bytes(len(data[at : at + 300])) + data[at + 300 :])
        case "remove":
            path.write_bytes(data[:at] + data[at + 50 :])
        case "insert":
            path.write_bytes(data[:at] + b"\xf5SRBgarbage" + data[at:])
        case "delete":
            path.unlink()


OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("commit")),
    st.tuples(st.just("discard"), st.integers(0, 50)),
    st.tuples(st.just("fail"), st.integers(0, 8)),
    st.tuples(st.just("trim"), st.integers(0, 60)),
    st.tuples(st.just("reopen")),
    st.tuples(
        st.just("damage"),
        st.sampled_from(["flip", "cut", "zero", "remove", "insert", "delete"]),
        st.integers(0, 5),
        st.integers(0, 5000),
    ),
)


@pytest.mark.heavy
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(OPERATIONS, max_size=12), max_size=6))
def test_any_sequence_keeps_intact_batches_and_invents_none(
    groups: list[list[tuple[str, *tuple[int | str, ...]]]],
) -> None:
    with TemporaryDirectory() as directory:
        checked = CheckedStore(Path(directory))
        for group in groups:
            for _ in range(8):
                checked.append(2)
            for name, *arguments in group:
                getattr(checked, name)(*arguments)
                checked.check()
            checked.commit()
            checked.check()
        checked.reopen()
        checked.check()
        checked.store.close()
