"""Recovery of logs: every state of the files opens, and intact batches keep their offsets."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from errno import EIO, ENOSPC
from pathlib import Path

import pytest
from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.limits import is_same_chain
from skipring.core.log import LogEntry
from skipring.errors import StorageError
from skipring.storage import recovery, topic_log
from skipring.storage import segment as segment_module
from skipring.storage.recovery import LoadedSegment, load_segment
from skipring.storage.segment import FileCache, read_footer, segment_name
from skipring.storage.segment_format import (
    HEADER_BYTES_MAX,
    HEADERS,
    START_OF_CHAIN,
    SegmentHeader,
    encode_footer,
)
from skipring.storage.statistics import SegmentStatistics
from skipring.storage.topic_directory import QUARANTINE, RECORD_FILE
from tests.storage.logs import (
    HEADER,
    NEWS,
    OWNER,
    SMALL,
    FailingDisk,
    batch,
    encoded,
    entries_of,
    flip,
    loaded,
    made,
    offsets,
    opened,
    positions,
    quarantined,
    segment_file,
    segments,
    state,
    topic_path,
    write,
)


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip syncs: these tests change files, they do not stop the machine."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(topic_log, "sync_data", lambda file: None)


def copied(directory: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target)
    return target


def test_torn_tail_is_truncated_at_every_byte(tmp_path: Path) -> None:
    store = tmp_path / "store"
    last = segments(made(store, 3))[-1]
    _, _, epoch = state(store)
    data = last.read_bytes()
    places = positions(last)
    for size in range(len(data)):
        last.write_bytes(data[:size])
        whole = max(0, sum(each <= size for each in places) - 1)
        expected = [2 * number for number in range(whole)]
        assert state(store) == (expected, 2 * whole, epoch)
        with opened(store) as again:  # and the log continues
            write(again, 2)
            assert offsets(again.log(NEWS)) == [*expected, 2 * whole, 2 * whole + 2]
        for path in segments(last.parent):
            path.unlink()


@pytest.mark.parametrize("tail", [bytes(500), b"\xff" * 500, b"\xf5SRB" * 100])
def test_garbage_after_the_last_entry_is_removed(tmp_path: Path, tail: bytes) -> None:
    path = made(tmp_path, 3)
    before = state(tmp_path)
    (last,) = segments(path)
    size = last.stat().st_size
    last.write_bytes(last.read_bytes() + tail)
    assert state(tmp_path) == before
    assert last.stat().st_size == size
    assert len(quarantined(path)) == bool(tail.strip(b"\0"))


@pytest.mark.heavy
def test_flipped_bytes_at_500_places_lose_only_their_batch(tmp_path: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    path = made(store, 14)
    everything, end, epoch = state(store)
    files = segments(path)
    assert len(files) >= 3
    total = sum(each.stat().st_size for each in files)
    for step in range(500):
        target = topic_path(copied(store, copy))
        place = step * total // 500
        for file in segments(target):
            size = file.stat().st_size
            if place < size:
                flip(file, place, 1 << step % 8)
                break
            place -= size
        found, new_end, new_epoch = state(copy)
        lost = set(everything) - set(found)
        assert len(lost) <= 1
        if new_epoch == epoch:  # the tail is torn, or a footer hides the damage until it is read
            assert new_end == end or lost == {everything[-1]}
        else:
            assert new_end == end
            assert lost
        assert state(copy) == (found, new_end, new_epoch)


def test_damage_in_the_middle_is_a_hole_with_a_new_epoch_once(tmp_path: Path) -> None:
    path = made(tmp_path, 5)
    _, end, epoch = state(tmp_path)
    (file,) = segments(path)
    places = positions(file)
    position = places[2]
    damaged = bytearray(file.read_bytes()[position : places[3]])
    flip(file, position + 80)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        assert offsets(log) == [0, 2, 6, 8]
        assert log.read(4) is None
        assert log.end == end
        assert log.epoch != epoch
        epoch = log.epoch
        write(store, 10)  # the segment with the hole is sealed
        assert offsets(log) == [0, 2, *range(6, 30, 2)]
    assert state(tmp_path) == ([0, 2, *range(6, 30, 2)], 30, epoch)
    damaged[80] ^= 1
    assert file.read_bytes()[position : position + len(damaged)] == damaged, "for an analysis"


def test_second_hole_takes_another_epoch(tmp_path: Path) -> None:
    path = made(tmp_path, 6)
    epochs = {state(tmp_path)[2]}
    (file,) = segments(path)
    places = positions(file)
    for number in (1, 3):
        flip(file, places[number] + 70)
        epochs.add(state(tmp_path)[2])
    assert len(epochs) == 3
    assert state(tmp_path)[0] == [0, 4, 8, 10]


@pytest.mark.parametrize(("is_retried", "found"), [(False, [0, 2, 4]), (True, [0, 2])])
def test_recovery_syncs_the_names_of_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_retried: bool, found: list[int]
) -> None:
    path = made(tmp_path, 3)
    empty = path / segment_name(4)  # of a commit that was retried after a failed sync
    if is_retried:
        empty.write_bytes(b"")
    synced: list[tuple[Path, bool]] = []

    def sync(file: int) -> None:
        synced.append((Path(f"/proc/self/fd/{file}").readlink(), empty.exists()))

    monkeypatch.setattr(os, "fsync", sync)
    with opened(tmp_path) as store:
        assert offsets(store.log(NEWS)) == found
    assert synced[-1] == (path, False)


def test_missing_footer_is_rebuilt(tmp_path: Path) -> None:
    path = made(tmp_path, 20)
    before = state(tmp_path)
    first = segments(path)[0]
    data = first.read_bytes()
    places = positions(first)
    end = places[-1]
    for damaged in (data[:end], data[: end + 20], data[:-1], data[:-5] + b"12345"):
        first.write_bytes(damaged)
        assert state(tmp_path) == before
        assert first.read_bytes() == data


def test_footer_that_cannot_be_rebuilt_does_not_prevent_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path, 20)
    before = state(tmp_path)
    first = segments(path)[0]
    first.write_bytes(first.read_bytes()[:-1])

    def full(file: int, parts: list[bytes], position: int) -> int:
        raise OSError(ENOSPC, "no room")

    with monkeypatch.context() as context:
        context.setattr(os, "pwritev", full)
        assert state(tmp_path) == before
    assert state(tmp_path) == before


@pytest.mark.parametrize("number", [0, 1, 2])
def test_missing_segment_is_a_hole(tmp_path: Path, number: int) -> None:
    path = made(tmp_path, 22)
    everything, end, epoch = state(tmp_path)
    files = segments(path)
    assert len(files) > 3
    start, stop = int(files[number].stem), int(files[number + 1].stem)
    files[number].unlink()
    expected = [each for each in everything if not start <= each < stop]
    found, new_end, new_epoch = state(tmp_path)
    assert (found, new_end) == (expected, end)
    assert new_epoch != epoch
    assert state(tmp_path) == (found, new_end, new_epoch)


def test_missing_last_segment_shortens_the_log(tmp_path: Path) -> None:
    path = made(tmp_path, 22)
    everything, _, epoch = state(tmp_path)
    last = segments(path)[-1]
    last.unlink()
    start = int(last.stem)
    expected = [each for each in everything if each < start]
    assert state(tmp_path) == (expected, start, epoch)


def test_missing_record_is_rebuilt_from_the_segments(tmp_path: Path) -> None:
    path = made(tmp_path, 10)
    found, end, epoch = state(tmp_path)
    for damage in (None, b"", b"garbage"):
        (path / RECORD_FILE).unlink()
        if damage is not None:
            (path / RECORD_FILE).write_bytes(damage)
        with opened(tmp_path) as store:
            assert store.topics == []  # until the node asks for the topic
            assert store.log(NEWS).end == end
        with opened(tmp_path) as store:
            assert store.topics == [NEWS]
        again = state(tmp_path)
        assert again[:2] == (found, end)
        assert again[2] != epoch
        assert state(tmp_path) == again
        epoch = again[2]


def test_directory_without_a_known_topic_waits_for_it(tmp_path: Path) -> None:
    path = made(tmp_path, 4)
    found, end, _ = state(tmp_path)
    (path / RECORD_FILE).unlink()
    (file,) = segments(path)
    flip(file, 10)
    before = sorted(path.iterdir())
    with opened(tmp_path) as store:
        assert store.topics == []
        assert sorted(path.iterdir()) == before
        log = store.log(NEWS)
        assert (offsets(log), log.end) == (found, end)
        write(store, 1)
    with opened(tmp_path) as store:
        assert store.topics == [NEWS]
        assert offsets(store.log(NEWS)) == [*found, end]


def test_empty_directory_is_an_empty_log(tmp_path: Path) -> None:
    path = made(tmp_path, 10)
    shutil.rmtree(path)
    path.mkdir()
    with opened(tmp_path) as store:
        assert store.topics == []
        write(store, 1)
    assert state(tmp_path)[:2] == ([0], 2)


def test_foreign_files_go_to_the_quarantine(tmp_path: Path) -> None:
    path = made(tmp_path, 20)
    other = made(tmp_path, 20, topic="other")
    before = state(tmp_path)
    (path / "notes").write_bytes(b"notes")
    (path / "subdirectory").mkdir()
    (path / segment_name(77)).symlink_to(path / "notes")
    shutil.copy(segments(path)[1], path / segment_name(5))  # not its offset
    shutil.copy(segments(other)[0], path / segment_name(0).replace("0.log", "3.log"))
    (path / segment_name(9)).mkdir()
    assert state(tmp_path) == before
    names = [segment_name(start) for start in (3, 5, 9, 77)]
    assert [name.rpartition(".")[0] for name in quarantined(path)] == [
        *names,
        "notes",
        "subdirectory",
    ]
    assert {each.name for each in path.iterdir() if each.suffix != ".log"} == {
        RECORD_FILE,
        QUARANTINE,
    }


def test_segment_of_another_topic_in_place_of_one_is_a_hole(tmp_path: Path) -> None:
    path = made(tmp_path, 20)
    other = made(tmp_path, 20, topic="other")
    everything, end, epoch = state(tmp_path)
    shutil.copy(segments(other)[1], segments(path)[1])
    found, new_end, new_epoch = state(tmp_path)
    start, stop = int(segments(other)[1].stem), int(segments(other)[2].stem)
    assert found == [each for each in everything if not start <= each < stop]
    assert new_end == end
    assert new_epoch != epoch


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(3000)])
def test_useless_segment_at_the_end_cuts_unconfirmed_entries(
    tmp_path: Path, content: bytes
) -> None:
    path = made(tmp_path, 5)
    _, _, epoch = state(tmp_path)
    (path / segment_name(6)).write_bytes(content)  # of a commit that was repeated after a failure
    assert state(tmp_path) == ([0, 2, 4], 6, epoch)
    assert [each.name for each in segments(path)] == [segment_name(0)]
    assert state(tmp_path) == ([0, 2, 4], 6, epoch)


def test_useless_segment_before_others_changes_nothing(tmp_path: Path) -> None:
    path = made(tmp_path, 20)
    before = state(tmp_path)
    (path / segment_name(2)).write_bytes(b"garbage")
    assert state(tmp_path) == before
    assert quarantined(path)[0].startswith(segment_name(2))


def test_overlapping_entries_of_the_segment_before_are_ignored(tmp_path: Path) -> None:
    path = made(tmp_path, 3)
    _, _, epoch = state(tmp_path)
    retried = tmp_path / "retried"
    made(retried, 3)
    with opened(retried) as store:  # the next commit begins a segment
        log = store.log(NEWS)
        (file,) = segments(topic_path(retried))
        write(store, 2)
        assert log.end == 10
    shutil.copy(file, path / segment_name(0))  # entries up to 10
    with opened(tmp_path) as store:
        chain = store.log(NEWS).chain_at(6)
    shutil.rmtree(retried)
    longer = SegmentCopy(tmp_path / "longer", 6, chain)
    shutil.copy(longer.path, path / segment_name(6))
    found, end, new_epoch = state(tmp_path)
    assert found == [0, 2, 4, 6, 8, 10, 12]
    assert (end, new_epoch) == (14, epoch)
    assert segments(path)[0].stat().st_size < SMALL


class SegmentCopy:
    """Segment that begins at an offset, with four batches."""

    def __init__(self, directory: Path, start: int, chain: bytes) -> None:
        with opened(directory) as store:
            log = store.log(NEWS)
            for first in range(0, start, 2):
                log.append(batch(first))
            store.commit()
            assert is_same_chain(log.chain_at(start), chain)
            log.append(batch(start))
            with pytest.MonkeyPatch.context() as context:
                FailingDisk(context).refused = "sync_data"
                with pytest.raises(StorageError):
                    store.commit()
            write(store, 3)
        self.path = segments(topic_path(directory))[-1]
        assert self.path.name == segment_name(start)


def test_discarded_offsets_beyond_the_end_are_forgotten(tmp_path: Path) -> None:
    path = made(tmp_path, 3)
    with opened(tmp_path) as store:
        store.log(NEWS).discard(4)
        store.commit()
    (file,) = segments(path)
    file.write_bytes(file.read_bytes()[:-1])
    assert state(tmp_path)[:2] == ([0, 2], 4)
    with opened(tmp_path) as store:
        write(store, 1)
        assert offsets(store.log(NEWS)) == [0, 2, 4]


def test_damaged_header_keeps_the_chain(tmp_path: Path) -> None:
    path = made(tmp_path, 20)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        before = [log.chain_at(offset) for offset in range(log.end + 1)]
        epoch = log.epoch
    for file in segments(path):
        flip(file, 12)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        assert [log.chain_at(offset) for offset in range(log.end + 1)] == before
        assert log.epoch == epoch
        assert len(offsets(log)) == 20


def test_crash_during_a_recovery_does_not_hide_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, copies = tmp_path / "live", tmp_path / "copies"
    path = made(live, 20)
    everything, end, epoch = state(live)
    first = segments(path)[0]
    places = positions(first)
    flip(first, places[1] + 80)
    flip(first, first.stat().st_size - 20)  # its footer
    with monkeypatch.context() as context:
        disk = FailingDisk(context)
        disk.before = lambda: shutil.copytree(live, copies / str(disk.calls))
        found, _, new_epoch = state(live)
    assert found == [each for each in everything if each != 2]
    assert new_epoch != epoch
    assert len(list(copies.iterdir())) > 3
    for copy in copies.iterdir():
        again, again_end, again_epoch = state(copy)
        assert (again, again_end) == (found, end)
        assert again_epoch != epoch


# -- one segment -----------------------------------------------------------------------------

ENTRIES = entries_of(*[batch(2 * number) for number in range(5)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / segment_name(0)


def load(path: Path) -> LoadedSegment:
    found = loaded(path)
    assert found is not None
    return found


def indexed(path: Path) -> list[int]:
    return list(load(path).segment.index.offsets)


def sealed(path: Path) -> None:
    files = FileCache(os.O_RDWR)
    load(path).segment.seal(files)
    files.close()


def small_chunks(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    for module in (segment_module, recovery):
        monkeypatch.setattr(module, "CHUNK_BYTES", size)


def test_entries_up_to_an_offset_are_loaded(path: Path) -> None:
    places = segment_file(path, *ENTRIES)
    for _ in range(2):
        for limit in range(12):
            kept = min(limit // 2, 5)
            with closing(FileCache(os.O_RDONLY)) as files:
                found = load_segment(files, path, HEADER, limit)
            assert found is not None
            index = found.segment.index
            assert list(index.offsets) == [0, 2, 4, 6, 8][:kept]
            assert (index.size, index.end) == (places[kept], 2 * kept)
            assert index.chain == (ENTRIES[kept - 1].chain if kept else START_OF_CHAIN)
        sealed(path)


def test_unordered_and_impossible_numbers_are_not_the_newest(path: Path) -> None:
    rows = [BatchRecord(b"x")]
    sink = RecordBatch.of(rows, publisher=OWNER, first=9, topic=NEWS, unordered=True)
    large = RecordBatch.of(rows, publisher=OWNER, first=1 << 62, topic=NEWS)
    segment_file(path, *entries_of(sink, large))
    assert load(path).segment.index.newest == {}


def test_header_is_read_from_the_footer_if_it_is_damaged(path: Path) -> None:
    segment_file(path, *ENTRIES)
    sealed(path)
    flip(path, 10)
    assert load(path).segment.footer_bytes > 0


def test_damaged_header_alone_loses_no_entry(path: Path) -> None:
    segment_file(path, *ENTRIES)
    flip(path, 10)
    assert indexed(path) == [0, 2, 4, 6, 8]
    assert load(path).lost == []


@pytest.mark.parametrize("header", [SegmentHeader("other", 0, b""), SegmentHeader(NEWS, 2, b"")])
def test_segment_of_another_topic_or_offset_is_refused(path: Path, header: SegmentHeader) -> None:
    segment_file(path, *ENTRIES, header=header)
    assert loaded(path) is None


def test_footer_of_changed_length_is_not_used(path: Path) -> None:
    places = segment_file(path, *ENTRIES)
    sealed(path)
    data = path.read_bytes()
    path.write_bytes(data[: places[1]] + data[places[2] :])
    assert not load(path).segment.footer_bytes
    assert indexed(path) == [0, 4, 6, 8]
    assert load(path).lost == [(2, 4)]


def test_footer_whose_statistics_do_not_fit_its_ids_is_not_used(path: Path) -> None:
    """Wrong statistics would hide entries from reads."""
    segment_file(path, *ENTRIES)
    sealed(path)
    with closing(FileCache(os.O_RDONLY)) as files:
        footer = read_footer(files, path, path.stat().st_size)
    assert footer is not None
    short = SegmentStatistics(footer.statistics.tags[1:], 5, 6)
    data = path.read_bytes()[: footer.at]
    path.write_bytes(data + encode_footer(replace(footer, statistics=short)))
    assert not load(path).segment.footer_bytes
    assert indexed(path) == [0, 2, 4, 6, 8]


def test_inserted_bytes_lose_no_entry(path: Path) -> None:
    places = segment_file(path, *ENTRIES)
    data = path.read_bytes()
    path.write_bytes(data[: places[2]] + b"garbage" + data[places[2] :])
    assert indexed(path) == [0, 2, 4, 6, 8]
    assert load(path).lost == []


@pytest.mark.parametrize("place", [0, 5, 9, 20, 40, 90, -1])
def test_scan_finds_the_entries_behind_a_damaged_one(path: Path, place: int) -> None:
    places = segment_file(path, *ENTRIES)
    damaged = places[1] + place if place >= 0 else places[2] - 1
    flip(path, damaged)
    assert indexed(path) == [0, 4, 6, 8]
    assert load(path).lost == [(2, 4)]


def test_scan_over_several_chunks_finds_everything(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = entries_of(*[batch(2 * number, size=50) for number in range(60)])
    places = segment_file(path, *entries)
    small_chunks(monkeypatch, 1024)
    for damaged in range(0, 59, 7):
        flip(path, places[damaged] + 5)
        flip(path, places[damaged] + 60)
    expected = [e.offset for n, e in enumerate(entries) if n >= 59 or n % 7]
    assert indexed(path) == expected
    files = FileCache(os.O_RDONLY)
    assert list(load(path).segment.ids(files)) == [batch(each, size=50).id for each in expected]
    files.close()


def test_marker_at_the_border_of_a_chunk_is_found(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch, 512)
    first, second = entries_of(batch(0), batch(2))
    for gap in range(480, 540):
        data = HEADERS.encode(HEADER) + encoded(first) + bytes(gap) + encoded(second)
        path.write_bytes(data)
        assert indexed(path) == [0, 2]


def test_entry_in_a_payload_is_not_an_entry_of_the_log(path: Path) -> None:
    def outer(inner: LogEntry) -> list[LogEntry]:
        row = BatchRecord(b"before" + encoded(inner) + b"after")
        return entries_of(RecordBatch.of([row], publisher="a", first=0, topic=NEWS), batch(1))

    genuine = LogEntry(0, bytes(16), batch(50))
    forged = LogEntry(0, bytes(16), RecordBatch("b", 0, 1, b"body", id=b"i" * 32))
    far = LogEntry(1 << 60, bytes(16), batch(50))
    for inner in (genuine, forged, far):
        entries = outer(inner)
        places = segment_file(path, *entries)
        flip(path, places[1] - 1)  # the size of the outer entry leads to the next one
        assert indexed(path) == [1]
    for inner in (forged, far):
        places = segment_file(path, *outer(inner))
        flip(path, places[0])  # the outer entry is not recognised
        assert indexed(path) == [1]


def test_repeated_entries_are_ignored(path: Path) -> None:
    data = HEADERS.encode(HEADER) + b"".join(encoded(ENTRIES[n]) for n in (0, 1, 0, 1, 2))
    path.write_bytes(data)
    assert indexed(path) == [0, 2, 4]


def test_unreadable_block_of_the_disk_loses_only_its_entries(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = segment_file(path, *ENTRIES)
    block = 16
    bad = (places[1] + 30) // block * block
    pread = os.pread

    def failing(file: int, size: int, position: int) -> bytes:
        if position <= bad < position + size and size != HEADER_BYTES_MAX:
            raise OSError(EIO, "disk error")
        return pread(file, size, position)

    monkeypatch.setattr(segment_module, "_BLOCK_BYTES", block)
    monkeypatch.setattr(os, "pread", failing)
    assert indexed(path) == [0, 4, 6, 8]


def test_other_errors_of_the_disk_are_raised(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment_file(path, *ENTRIES)

    def failing(file: int, size: int, position: int) -> bytes:
        raise PermissionError

    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(PermissionError):
        load(path)


# -- trimmed logs ----------------------------------------------------------------------------


def trimmed(directory: Path, count: int = 30) -> tuple[Path, dict[Path, bytes]]:
    """Return the directory of a log trimmed by half, and the files that it had before."""
    path = made(directory, count)
    before = {each: each.read_bytes() for each in path.iterdir() if each.is_file()}
    with opened(directory) as store:
        store.log(NEWS).trim(count)
        store.commit()
        assert len(segments(path)) < len(before) - 1
    return path, before


def test_deleted_segments_from_a_backup_are_deleted_again(tmp_path: Path) -> None:
    path, before = trimmed(tmp_path)
    expected, names = state(tmp_path), segments(path)
    for file, data in before.items():
        if not file.exists():
            file.write_bytes(data)
    assert state(tmp_path) == expected
    assert segments(path) == names
    assert not quarantined(path)


def test_record_from_a_backup_reports_the_trimmed_records_as_lost(tmp_path: Path) -> None:
    path, before = trimmed(tmp_path)
    found, end, epoch = state(tmp_path)
    (path / RECORD_FILE).write_bytes(before[path / RECORD_FILE])
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        start = int(segments(path)[0].stem)
        assert store.lost == log.count_absent(0, end) == start
        assert log.epoch != epoch
        assert set(found) <= set(offsets(log))


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_low_is_derived_from_the_files_if_its_record_is_damaged(
    tmp_path: Path, content: bytes | None
) -> None:
    path, _ = trimmed(tmp_path)
    found, end, epoch = state(tmp_path)
    data = (path / RECORD_FILE).read_bytes()
    torn = [data[:size] for size in range(0, len(data), 7)] if content is None else [content]
    for each in torn:
        (path / RECORD_FILE).write_bytes(each)
        with opened(tmp_path) as store:
            log = store.log(NEWS)
            assert log.low == int(segments(path)[0].stem)
            assert (log.count_absent(0, end), store.damage) == (0, None)
            assert set(found) <= set(offsets(log))
            assert log.epoch != epoch


def test_missing_segment_above_low_is_a_hole(tmp_path: Path) -> None:
    path, _ = trimmed(tmp_path)
    found, end, epoch = state(tmp_path)
    _, second, third, *_ = segments(path)
    start, stop = int(second.stem), int(third.stem)
    second.unlink()
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        assert offsets(log) == [each for each in found if not start <= each < stop]
        assert (log.count_absent(0, end), store.lost) == (stop - start, stop - start)
        assert log.count_trimmed(0, end) == log.low
        assert (log.end, log.epoch == epoch) == (end, False)


@pytest.mark.parametrize("is_all_lost", [False, True])
def test_log_continues_at_low_if_its_files_end_before(tmp_path: Path, is_all_lost: bool) -> None:
    path, before = trimmed(tmp_path)
    low, epoch = state(tmp_path)[0][0], state(tmp_path)[2]
    for file in segments(path):
        file.unlink()
    if not is_all_lost:
        first = path / segment_name(0)
        first.write_bytes(before[first])
    for _ in range(2):
        with opened(tmp_path) as store:
            log = store.log(NEWS)
            assert (log.low, log.end, log.records, offsets(log)) == (low, low, 0, [])
            assert log.epoch != epoch
    with opened(tmp_path) as store:
        write(store, 20)
        expected = list(range(low, low + 40, 2))
        assert offsets(store.log(NEWS)) == expected
        epoch = store.log(NEWS).epoch
    assert state(tmp_path) == (expected, low + 40, epoch)


def test_numbers_of_deleted_segments_are_not_issued_again(tmp_path: Path) -> None:
    made(tmp_path, 30)
    with opened(tmp_path) as store:
        log = store.log(NEWS)
        newest = log.newest(OWNER)
        assert newest
        log.trim(60)
        store.commit()
        write(store, 30)
        log.trim(120)
        store.commit()
    with opened(tmp_path) as store:
        found = store.log(NEWS).newest(OWNER)
        assert found.keys() == newest.keys()
        assert all(found[each] > newest[each] for each in newest)
