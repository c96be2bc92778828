"""Store of a node: it returns the committed records, and nothing else."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from msgspec.structs import replace

from skipring.core.log import Log, MemoryLog
from skipring.core.publications import SEQ_BELIEVED_MAX, Encoded, Publication, encoded
from skipring.errors import StorageError, StoreBusyError, StoreFullError
from skipring.storage import sqlite as database
from skipring.storage import store as store_module
from skipring.storage.page_scan import PAGE_SIZES
from skipring.storage.segment import PACK_BYTES
from skipring.storage.store import PublicationStore
from tests.storage.stored import (
    CHAT,
    DATABASE,
    NEWS,
    PROMISES,
    change,
    crashed,
    damaged,
    losses,
    made,
    offsets,
    publication,
    query,
    state,
    write,
)

WAIT_S = 20.0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


# -- logs ---------------------------------------------------------------------------------


def test_new_store_is_empty(directory: Path) -> None:
    with PublicationStore.open(directory) as store:
        archive: Log = store.archive(NEWS)
        assert (archive.end, archive.read(0), archive.read(-1)) == (0, None, None)
        assert list(archive.entries()) == list(archive.publications()) == []
        assert archive.newest() == {}
        assert (store.topics, str(store.recovery)) == ([NEWS], "0 publications")


def page_size(directory: Path) -> int:
    ((size,),) = query(directory, "PRAGMA page_size")
    assert isinstance(size, int)
    return size


@pytest.mark.parametrize("page_bytes", PAGE_SIZES)
def test_file_of_any_page_size_is_used_unchanged_with_the_same_log_size(
    directory: Path, page_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr(database, "PAGE_BYTES", page_bytes)
        made(directory, 3)
    with PublicationStore.open(directory) as store:
        assert store.recovery.damage is None
        write(store, *[8] * 8, size=PACK_BYTES)
        size = (directory / f"{DATABASE}-wal").stat().st_size
        assert database.LOG_BYTES < size < 2 * database.LOG_BYTES
    assert page_size(directory) == page_bytes
    assert state(directory) == (list(range(67)), 0)


def test_file_with_an_unknown_page_size_is_quarantined(directory: Path) -> None:
    made(directory, 3)
    change(directory, "PRAGMA journal_mode=DELETE", "PRAGMA page_size=1024", "VACUUM")
    with PublicationStore.open(directory) as store:
        assert store.recovery.damage == "its tables are not those of a store"
    assert page_size(directory) == PAGE_SIZES[0]
    assert damaged(directory) == [f"{DATABASE}.damaged-1"]


def test_encoded_rows_are_stored_unchanged_from_any_buffer(directory: Path) -> None:
    rows = [publication(seq, size=PACK_BYTES // 8) for seq in range(20)]
    came = Encoded.of([encoded(row) for row in rows[:12]])
    with PublicationStore.open(directory) as store:
        archive = store.archive(NEWS)
        archive.write(0, *rows[:12], encoded=replace(came, data=memoryview(came.data)))
        archive.write(12, *rows[12:])
        for _ in ("in memory", "on the disk"):
            assert list(archive.publications()) == rows
            assert archive.newest() == {("node0", 0): 18, ("node1", 0): 19, ("node2", 0): 17}
            stored = [data for each in archive.stored(0, 20, range(256)) for data in each.rows.data]
            assert b"".join(stored) == b"".join(map(encoded, rows))
            store.commit()


@pytest.mark.parametrize("aside", [(), (0, 3, 4, 11)])
def test_limited_read_returns_the_first_stored_rows(
    directory: Path, aside: tuple[int, ...]
) -> None:
    rows = [publication(seq, size=PACK_BYTES // 8) for seq in range(20)]
    with PublicationStore.open(directory) as store:
        archive = store.archive(NEWS)
        archive.write(0, *rows)
        for offset in aside:
            archive.discard(offset)
        kept = [offset for offset in range(20) if offset not in aside]
        for _ in ("in memory", "on the disk"):
            for count in (0, 1, 8, 9, len(kept), 99):
                parts = list(archive.stored(0, 20, range(256), count_max=count))
                assert [offset for part in parts for offset in part.rows.offsets] == kept[:count]
                assert len(parts) <= count
            store.commit()


def test_encoded_rows_can_be_discarded_before_the_commit(directory: Path) -> None:
    rows = [publication(seq) for seq in range(3)]
    with PublicationStore.open(directory) as store:
        archive = store.archive(NEWS)
        archive.write(0, *rows, encoded=Encoded.of([encoded(row) for row in rows]))
        archive.discard(1)
        store.commit()
    assert state(directory)[0] == [0, 2]


def test_written_record_is_readable_at_once_and_survives_only_after_a_commit(
    directory: Path,
) -> None:
    with PublicationStore.open(directory) as store:
        archive = store.archive(NEWS)
        archive.write(0, publication(0))
        assert offsets(store) == [0]
        assert (archive.end, archive.durable_end, store.unwritten) == (1, 0, 1)
        store.commit()
        assert offsets(store) == [0]
        assert (archive.end, archive.durable_end, store.unwritten) == (1, 1, 0)
        archive.write(1, publication(1))
    assert state(directory) == ([0], 0)
    assert damaged(directory) == []


def test_log_on_disk_behaves_like_a_log_in_memory(directory: Path) -> None:
    rows = [publication(offset) for offset in range(30)]
    memory = MemoryLog(rows)
    memory.discard(7)
    made(directory, 10, 1, 12)
    with PublicationStore.open(directory) as store:
        archive = store.archive(NEWS)
        for offset in range(23, 30):
            archive.write(offset, rows[offset])
        archive.discard(7)
        assert archive.end == memory.end
        assert list(archive.entries()) == list(memory.entries())
        assert list(archive.publications()) == list(memory.publications())
        assert [archive.read(o) for o in range(-1, 32)] == [
            None,
            *(memory.read(o) for o in range(32)),
        ]
        assert archive.newest() == memory.newest()


@pytest.mark.parametrize("offset", [0, 3])
def test_row_out_of_order_is_a_bug_of_the_host(directory: Path, offset: int) -> None:
    with PublicationStore.open(directory) as store:
        write(store, 1)
        store.archive(NEWS).write(1, publication(1))
        with pytest.raises(AssertionError):
            store.archive(NEWS).write(offset, publication(offset))


@pytest.mark.parametrize(
    "row",
    [
        Publication(publisher="a", seq=0, payload=b""),
        Publication(publisher="a", seq=(1 << 64) - 1, payload=b"x", time=(1 << 64) - 1),
        Publication(publisher="é" * 64, seq=1, payload=b"\0", key=b"", headers={"": "ü", "b": ""}),
        Publication(publisher="a", seq=0, payload=None, id=b"o" * 32),
    ],
)
def test_every_field_is_kept(directory: Path, row: Publication) -> None:
    row = row.with_id(NEWS)
    with PublicationStore.open(directory) as store:
        store.archive(NEWS).write(0, row)
        assert store.archive(NEWS).read(0) == row
        store.commit()
    with PublicationStore.open(directory) as store:
        assert store.archive(NEWS).read(0) == row


def test_T10_publication_under_a_wrong_id_is_never_served(directory: Path) -> None:
    with PublicationStore.open(directory) as store:
        archive = store.archive(NEWS)
        archive.write(0, replace(publication(0), id=b"x" * 32))
        assert archive.read(0) is None
        store.commit()
        assert archive.read(0) is None
        assert list(archive.publications()) == []


def test_publications_are_read_in_order_between_any_two_offsets(directory: Path) -> None:
    made(directory, 4, 4)
    with PublicationStore.open(directory) as store:
        archive = store.archive(NEWS)
        archive.write(8, publication(8))
        for start in range(10):
            for end in range(10):
                found = [offset for offset, _ in archive.read_range(start, end)]
                assert found == list(range(start, min(end, 9)))


def test_read_continues_while_the_store_is_written(directory: Path) -> None:
    with PublicationStore.open(directory) as store:
        write(store, 3)
        reading = store.archive(NEWS).read_range(0, 100)
        assert next(reading)[0] == 0
        write(store, 2)
        assert [offset for offset, _ in reading] == [1, 2, 3, 4]


def test_newest_ignores_implausible_sequences_and_discarded_rows(directory: Path) -> None:
    with PublicationStore.open(directory) as store:
        archive = store.archive(NEWS)
        for offset, seq in enumerate((4, 9, SEQ_BELIEVED_MAX)):
            row = Publication(publisher="a", seq=seq, payload=b"").with_id(NEWS)
            archive.write(offset, row)
        store.commit()
        assert archive.newest() == {("a", 0): 9}
        archive.discard(1)
        assert archive.newest() == {("a", 0): 9}


# -- segments -----------------------------------------------------------------------------


def test_commit_writes_few_rows_of_bounded_size(directory: Path) -> None:
    made(directory, 100, 50)
    assert query(directory, "SELECT count(*) FROM packs") == [(2,)]
    made(directory, 400, size=2000)
    sizes = [size for (size,) in query(directory, "SELECT length(body) FROM packs WHERE pack > 2")]
    assert len(sizes) == 4
    assert all(size < PACK_BYTES + 3000 for size in sizes)
    assert state(directory)[0] == list(range(550))


def test_commit_without_new_records_writes_nothing(directory: Path) -> None:
    with PublicationStore.open(directory) as store:
        write(store, 3)
        before = [(directory / name).read_bytes() for name in PROMISES]
        wal = (directory / f"{DATABASE}-wal").stat()
        store.commit()
        assert [(directory / name).read_bytes() for name in PROMISES] == before
        assert (directory / f"{DATABASE}-wal").stat() == wal


def test_topics_share_a_file_and_have_their_own_offsets(directory: Path) -> None:
    with PublicationStore.open(directory) as store:
        for topic, count in ((NEWS, 3), (CHAT, 2)):
            for offset in range(count):
                store.archive(topic).write(offset, publication(offset, topic))
        store.commit()
        write(store, 2, topic=CHAT)
    with PublicationStore.open(directory) as store:
        assert store.topics == [CHAT, NEWS]
        assert offsets(store, NEWS) == [0, 1, 2]
        assert offsets(store, CHAT) == [0, 1, 2, 3]
        assert str(store.recovery) == "7 publications"


def test_store_id_is_created_once_and_is_unique(tmp_path: Path) -> None:
    ids = []
    for name in ("a", "a", "b"):
        with PublicationStore.open(tmp_path / name) as store:
            ids.append(store.id)
    assert ids[0] == ids[1] != ids[2]
    assert len(bytes.fromhex(ids[0])) == 16


# -- discarding ---------------------------------------------------------------------------


def test_T12_discarded_record_is_quarantined_permanently_with_a_reason(directory: Path) -> None:
    with PublicationStore.open(directory) as store:
        write(store, 3)
        archive = store.archive(NEWS)
        archive.write(3, publication(3))
        archive.discard(1, "looks odd")
        archive.discard(1)
        archive.discard(3)
        archive.discard(9)
        assert offsets(store) == [0, 2]
        store.commit()
        assert archive.end == 4
    kept = query(directory, "SELECT topic, start, count, reason, length(body) > 40 FROM quarantine")
    assert kept == [
        (NEWS, 1, 1, "looks odd", 1),
        (NEWS, 3, 1, "not what was stored there (T12)", 1),
    ]
    with PublicationStore.open(directory) as store:
        assert offsets(store) == [0, 2]
        write(store, 1)
        assert offsets(store) == [0, 2, 4]


# -- environment --------------------------------------------------------------------------


def test_full_disk_loses_nothing_and_the_commit_is_retried(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = store_module.insert_pack

    def insert_until_full(db: sqlite3.Connection, body: bytes) -> int:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count={pages}")
        return insert(db, body)

    with PublicationStore.open(directory) as store:
        write(store, 5)
        archive = store.archive(NEWS)
        for offset in range(5, 105):
            archive.write(offset, publication(offset, size=1000))
        archive.discard(2)
        monkeypatch.setattr(store_module, "insert_pack", insert_until_full)
        for _ in range(2):
            with pytest.raises(StoreFullError, match="free some space"):
                store.commit()
            assert (archive.end, archive.durable_end, store.unwritten) == (105, 5, 100)
            assert len(offsets(store)) == 104

        def insert_with_room(db: sqlite3.Connection, body: bytes) -> int:
            db.execute("PRAGMA max_page_count=1000000")
            return insert(db, body)

        monkeypatch.setattr(store_module, "insert_pack", insert_with_room)
        archive.write(105, publication(105))
        store.commit()
        assert (archive.durable_end, store.unwritten) == (106, 0)
    assert state(directory)[0] == [offset for offset in range(106) if offset != 2]


def test_failed_write_of_the_durable_mark_makes_nothing_durable(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with PublicationStore.open(directory) as store:
        archive = store.archive(NEWS)
        archive.write(0, publication(0))
        with monkeypatch.context() as patch:
            patch.setattr("os.pwrite", full)
            with pytest.raises(StoreFullError):
                store.commit()
        assert (archive.durable_end, offsets(store)) == (0, [0])
        store.commit()
        assert (archive.durable_end, offsets(store)) == (1, [0])


def test_two_processes_cannot_share_a_directory(directory: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from skipring.storage.store import PublicationStore\n"
        "try: PublicationStore.open(Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    with PublicationStore.open(directory) as store:
        with pytest.raises(StoreBusyError, match="use another data directory"):
            PublicationStore.open(directory)
        other = subprocess.run(
            [sys.executable, "-c", program, directory],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert other.stdout.startswith("StoreBusyError")
        write(store, 1)
    assert state(directory)[0] == [0]


def test_database_locked_by_another_program_is_reported(directory: Path) -> None:
    made(directory, 1)
    other = sqlite3.connect(directory / DATABASE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusyError):
        PublicationStore.open(directory)
    other.close()
    assert state(directory)[0] == [0]
    assert damaged(directory) == []


def test_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    for directory in (tmp_path / "data", tmp_path / "data" / "deeper"):
        with pytest.raises(StorageError, match="a directory which this user may write to"):
            PublicationStore.open(directory)


def test_second_close_does_nothing(directory: Path) -> None:
    with PublicationStore.open(directory) as store:
        store.close()
    made(directory, 1)


def test_close_waits_for_a_commit_in_another_thread(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite crashes if a connection is closed while another thread uses it."""
    started, resumed = Event(), Event()
    transaction = store_module.transaction

    @contextmanager
    def paused(db: sqlite3.Connection) -> Iterator[None]:
        with transaction(db):
            started.set()
            assert resumed.wait(WAIT_S)
            yield

    store = PublicationStore.open(directory)
    store.archive(NEWS).write(0, publication(0))
    monkeypatch.setattr(store_module, "transaction", paused)
    committing, closing = Thread(target=store.commit), Thread(target=store.close)
    committing.start()
    assert started.wait(WAIT_S)
    closing.start()
    closing.join(0.2)  # long enough for a close that does not wait
    is_closed_early = not closing.is_alive()
    resumed.set()
    for thread in (committing, closing):
        thread.join(WAIT_S)
    assert not is_closed_early
    monkeypatch.undo()
    assert state(directory)[0] == [0]


def test_commits_in_another_thread_allow_reads_and_writes(directory: Path) -> None:
    count, failures = 400, []
    with PublicationStore.open(directory) as store:
        archive = store.archive(NEWS)
        stop = Event()

        def commit() -> None:
            try:
                while not stop.is_set():
                    store.commit()
            except Exception as error:  # noqa: BLE001  (reported below)
                failures.append(error)

        thread = Thread(target=commit)
        thread.start()
        try:
            for offset in range(count):
                archive.write(offset, publication(offset))
                for earlier in {0, offset // 2, offset}:
                    assert archive.read(earlier) == publication(earlier)
                assert archive.durable_end <= archive.end
        finally:
            stop.set()
            thread.join(timeout=60)
        store.commit()
        assert failures == []
        assert offsets(store) == list(range(count))
    assert state(directory)[0] == list(range(count))


def test_committed_records_survive_a_crash(directory: Path) -> None:
    with PublicationStore.open(crashed(directory, 3, 4)) as store:
        assert offsets(store) == list(range(7))
        assert (losses(store), store.recovery.damage) == (0, None)
