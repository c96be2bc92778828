"""Recovery: a damaged store opens, keeps intact records and serves nothing else."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import BinaryIO

import pytest

from skipring.core.publications import Publication
from skipring.storage import recovery as rebuilding
from skipring.storage import sqlite as database
from skipring.storage.data_dir import DAMAGED_MAX
from skipring.storage.durable_mark import losses_of
from skipring.storage.page_scan import PAGE_SIZES, SMALL_PAGE_BYTES, carved
from skipring.storage.store import PublicationStore
from tests.storage.stored import (
    CHAT,
    DATABASE,
    NEWS,
    PROMISES,
    change,
    crashed,
    damaged,
    flip,
    losses,
    made,
    offsets,
    places,
    publication,
    query,
    state,
    write,
)

COUNT = 60  # publications in the store that is damaged repeatedly


@pytest.fixture(autouse=True, params=PAGE_SIZES)
def page_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set the page size of new files."""
    monkeypatch.setattr(database, "PAGE_BYTES", request.param)
    return int(request.param)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


# -- damage to any byte -------------------------------------------------------------------


def reopened(directory: Path) -> int:
    """Return the number of remaining publications; assert that the store works again."""
    with PublicationStore.open(directory) as store:
        found = offsets(store)
        archive = store.archive(NEWS)
        assert len(found) == store.recovery.publications
        assert archive.end == COUNT or (archive.end < COUNT and losses(store) == 1)
        end = archive.end
        write(store, 2)
    with PublicationStore.open(directory) as store:
        assert offsets(store) == [*found, end, end + 1]
        assert store.recovery.damage is None
    return len(found)


@pytest.mark.heavy
@pytest.mark.parametrize("make", [made, crashed])
@pytest.mark.parametrize("size", [40, 2000])
def test_damage_to_any_byte_keeps_the_other_records(
    make: Callable[..., Path], size: int, tmp_path: Path
) -> None:
    original = make(tmp_path / "original", 20, 1, 1, 1, 30, 7, size=size)
    rng = Random(f"{make.__name__} {size}")
    kept = []
    for file in sorted(path for path in original.iterdir() if path.stat().st_size):
        for place in places(file, 12):
            copy = tmp_path / "copy"
            shutil.copytree(original, copy)
            flip(copy / file.name, min(place + rng.randrange(64), file.stat().st_size - 1))
            kept.append(reopened(copy))
            shutil.rmtree(copy)
    assert len(kept) > 30
    assert sum(kept) >= 0.95 * COUNT * len(kept), kept


@pytest.mark.heavy
@pytest.mark.parametrize("bytes_lost", [1, 512, 4096, 20_000])
def test_overwritten_part_invents_nothing(bytes_lost: int, tmp_path: Path) -> None:
    original = made(tmp_path / "original", 20, 1, 1, 1, 30, 7, size=400)
    rng = Random(bytes_lost)
    for place in places(original / DATABASE, 12):
        copy = tmp_path / "copy"
        shutil.copytree(original, copy)
        data = bytearray((copy / DATABASE).read_bytes())
        data[place : place + bytes_lost] = rng.randbytes(len(data[place : place + bytes_lost]))
        (copy / DATABASE).write_bytes(data)
        reopened(copy)
        shutil.rmtree(copy)


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9])
def test_truncated_file_keeps_its_beginning(directory: Path, share: float, page_bytes: int) -> None:
    made(directory, *[5] * 12, size=page_bytes // 4)
    data = (directory / DATABASE).read_bytes()
    (directory / DATABASE).write_bytes(data[: int(len(data) * share)])
    assert reopened(directory) >= COUNT * (share - 0.3)


def test_file_without_its_first_page_keeps_everything(directory: Path, page_bytes: int) -> None:
    made(directory, 20, 40)
    data = (directory / DATABASE).read_bytes()
    (directory / DATABASE).write_bytes(b"\0" * page_bytes + data[page_bytes:])
    with PublicationStore.open(directory) as store:
        assert offsets(store) == list(range(60))
        assert losses(store) == 0
        assert str(store.recovery) == (
            "60 publications; the file was damaged: file is not a database; "
            "0 lost here, to be fetched from other nodes; "
            "the damaged file is kept as publications.sqlite3.damaged-1"
        )


@pytest.mark.parametrize("other_bytes", PAGE_SIZES)
def test_damaged_file_of_any_page_size_keeps_everything(
    directory: Path, other_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(directory, 20, 20, 20, size=2000)
    for file in (directory / DATABASE, directory / f"{DATABASE}-wal"):
        file.write_bytes(b"\0" * 16 + file.read_bytes()[16:])  # in the log also the page size
    monkeypatch.setattr(database, "PAGE_BYTES", other_bytes)
    with PublicationStore.open(directory) as store:
        assert store.recovery.damage is not None
        assert offsets(store) == list(range(60))
        assert losses(store) == 0
    with PublicationStore.open(directory) as store:
        assert store.recovery.damage is None


@pytest.mark.parametrize("damage", ["no header", "the other size", "no size", "no second page"])
def test_pages_are_only_searched_at_page_boundaries(
    directory: Path, page_bytes: int, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage a file whose pages contain payloads that could pass for pages with segments."""
    made(directory, *[5] * 20, size=page_bytes // 4)
    data = bytearray((directory / DATABASE).read_bytes())
    match damage:
        case "no header":
            data[:SMALL_PAGE_BYTES] = bytes(SMALL_PAGE_BYTES)
        case "the other size":
            (other,) = {*PAGE_SIZES} - {page_bytes}
            data[16:18] = other.to_bytes(2, "big")
        case "no size":
            data[16:18] = b"\x12\x34"
        case _:
            data[page_bytes : page_bytes + 100] = bytes(100)
    (directory / DATABASE).write_bytes(data)
    tried: list[int] = []

    def noted(file: BinaryIO, wal: bytes, size: int) -> Iterator[bytes]:
        tried.append(size)
        return carved(file, wal, size)

    monkeypatch.setattr(rebuilding, "carved", noted)
    with PublicationStore.open(directory) as store:
        assert offsets(store) == list(range(100))
    # None if SQLite can still read it; both sizes only if it is unclear, one at a time.
    is_clear = damage in ("no header", "no size")
    assert (
        tried in ([], [page_bytes]) if is_clear else ([], [page_bytes], [*PAGE_SIZES, page_bytes])
    )


def read_only(path: Path) -> None:
    flip(path, 18)  # the version that a writer must support


def undecodable_schema(path: Path) -> None:
    flip(path, path.read_bytes().index(b"KEY, body") + len(b"KEY"), 0x80)


@pytest.mark.parametrize("damage", [read_only, undecodable_schema])
def test_file_with_a_damaged_header_or_schema_keeps_everything(
    directory: Path, damage: Callable[[Path], None]
) -> None:
    made(directory, 20)
    damage(directory / DATABASE)
    with PublicationStore.open(directory) as store:
        assert store.recovery.damage is not None
        write(store, 1)
        assert offsets(store) == list(range(21))


@pytest.mark.parametrize("is_directory", [False, True])
def test_foreign_file_or_directory_is_quarantined(directory: Path, is_directory: bool) -> None:
    directory.mkdir()
    if is_directory:
        (directory / DATABASE).mkdir()
    else:
        (directory / DATABASE).write_text("a letter to my aunt\n" * 1000)
    with PublicationStore.open(directory) as store:
        assert store.topics == []
    assert damaged(directory) == [f"{DATABASE}.damaged-1"]
    kept = directory / damaged(directory)[0]
    assert kept.is_dir() or kept.read_text().startswith("a letter")


# -- segments -----------------------------------------------------------------------------


def damage_publication(directory: Path, payload: bytes) -> None:
    """Damage one publication in a way that SQLite cannot detect."""
    data = (directory / DATABASE).read_bytes()
    flip(directory / DATABASE, data.index(payload) + 3)


def test_damage_to_one_publication_keeps_the_others_of_its_segment(directory: Path) -> None:
    made(directory, 10)
    damage_publication(directory, b"news 4 news 4 ")
    with PublicationStore.open(directory) as store:
        assert offsets(store) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert (store.recovery.lost, store.archive(NEWS).end) == (1, 10)
        assert losses(store) == 0
    marks = query(directory, "SELECT topic, start, count, reason FROM quarantine")
    assert marks == [(NEWS, 4, 1, "could not be read any more")]
    assert damaged(directory) == [f"{DATABASE}.damaged-1"]


def test_damaged_last_publication_is_below_the_durable_mark(directory: Path) -> None:
    made(directory, 10)
    damage_publication(directory, b"news 9 news 9 ")
    with PublicationStore.open(directory) as store:
        assert offsets(store) == list(range(9))
        assert (store.archive(NEWS).end, losses(store)) == (9, 1)
        assert (store.recovery.lost, store.recovery.raised) == (1, (NEWS,))
        assert str(store.recovery).endswith("the offsets start again for news")


def test_row_damaged_at_run_time_is_not_served(directory: Path) -> None:
    made(directory, 3, 3)
    with PublicationStore.open(directory) as store:
        change(directory, "UPDATE packs SET body = substr(body, 1, 100) WHERE pack = 1")
        change(directory, "DELETE FROM packs WHERE pack = 2")
        archive = store.archive(NEWS)
        assert [archive.read(offset) for offset in range(6)] == [None] * 6
        assert list(archive.entries()) == list(archive.publications()) == []
        for offset in range(6):
            archive.discard(offset)
        write(store, 2)
        assert offsets(store) == [6, 7]
    with PublicationStore.open(directory) as store:
        assert offsets(store) == [6, 7]


def test_segments_with_equal_offsets_are_served_once(directory: Path) -> None:
    made(directory, 3, 2)
    change(directory, "INSERT INTO packs(body) SELECT body FROM packs WHERE pack = 1")
    assert state(directory) == (list(range(5)), 0)


def lose_second_segment(directory: Path) -> None:
    change(directory, "DELETE FROM packs WHERE pack = 2", "VACUUM")  # no page has it any more


def test_missing_segment_leaves_a_known_gap(directory: Path) -> None:
    made(directory, 3, 2, 4)
    lose_second_segment(directory)
    with PublicationStore.open(directory) as store:
        assert (store.archive(NEWS).end, store.recovery.lost) == (9, 2)
    assert state(directory) == ([0, 1, 2, 5, 6, 7, 8], 0)
    with PublicationStore.open(directory) as store:
        assert store.recovery.damage is None


def test_discarded_record_stays_discarded_after_a_rebuild(directory: Path) -> None:
    with PublicationStore.open(directory) as store:
        write(store, 5, 5)
        store.archive(NEWS).discard(2)
        store.archive(NEWS).discard(9)
        store.commit()
    damage_publication(directory, b"news 4 news 4 ")
    with PublicationStore.open(directory) as store:
        assert offsets(store) == [0, 1, 3, 5, 6, 7, 8]


def test_reused_offset_is_not_mistaken_for_a_discarded_one(directory: Path) -> None:
    with PublicationStore.open(directory) as store:
        write(store, 3, 3)
        store.archive(NEWS).discard(4)
        store.commit()
    lose_second_segment(directory)
    assert state(directory) == ([0, 1, 2], 1)
    made(directory, 3)
    assert state(directory) == (list(range(6)), 1)


def test_publication_that_looks_like_a_segment_is_not_mistaken_for_one(directory: Path) -> None:
    other = made(directory.with_name("other"), 1)
    ((forged,),) = query(other, "SELECT body FROM packs")
    with PublicationStore.open(directory) as store:
        for offset in range(200):
            row = Publication(publisher="a", seq=offset, payload=forged + bytes(offset))
            store.archive(CHAT).write(offset, row.with_id(CHAT))
        store.archive(CHAT).discard(7)
        store.commit()
    flip(directory / DATABASE, 20, 255)
    with PublicationStore.open(directory) as store:
        assert store.recovery.damage is not None
        assert store.topics == [CHAT]


# -- write-ahead log ----------------------------------------------------------------------


def test_lost_write_ahead_log_is_detected_by_the_durable_mark(directory: Path) -> None:
    crashed(directory, 3, 4)
    (directory / f"{DATABASE}-wal").unlink()
    with PublicationStore.open(directory) as store:
        assert (offsets(store), losses(store)) == ([], 1)
        assert (store.recovery.lost, store.recovery.raised) == (7, (NEWS,))


def test_write_ahead_log_damaged_in_the_middle_keeps_later_records(
    directory: Path, page_bytes: int
) -> None:
    crashed(directory, *[3] * 20)
    # The header of the second frame of a page.
    flip(directory / f"{DATABASE}-wal", 32 + 24 + page_bytes + 10)
    assert state(directory) == (list(range(60)), 0)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_truncated_write_ahead_log_keeps_earlier_records(
    directory: Path, share: float, page_bytes: int
) -> None:
    crashed(directory, *[3] * 20, size=page_bytes // 25)
    wal = directory / f"{DATABASE}-wal"
    data = wal.read_bytes()
    wal.write_bytes(data[: int(len(data) * share)])
    found, lost = state(directory)
    assert found == list(range(len(found)))
    assert 60 * (share - 0.1) < len(found) < 60
    assert lost == 1


# -- durable marks and epochs -------------------------------------------------------------


def epochs_after(directory: Path, *, news: int, chat: int) -> None:
    with PublicationStore.open(directory) as store:
        assert (losses(store), losses(store, CHAT)) == (news, chat)
        offsets(store, NEWS)
        offsets(store, CHAT)


def two_topics(directory: Path) -> Path:
    made(directory, 5)
    return made(directory, 5, topic=CHAT)


def test_only_a_topic_that_ends_below_its_durable_mark_gets_a_new_epoch(directory: Path) -> None:
    two_topics(directory)
    lose_second_segment(directory)
    for _ in range(2):
        epochs_after(directory, news=0, chat=1)


def test_epoch_never_falls(directory: Path) -> None:
    two_topics(directory)
    for epoch in range(1, 4):
        (directory / DATABASE).unlink()
        epochs_after(directory, news=epoch, chat=epoch)
        two_topics(directory)
    for name in PROMISES:
        (directory / name).unlink()
    epochs_after(directory, news=3, chat=3)


def epoch_of(directory: Path) -> int:
    with PublicationStore.open(directory) as store:
        return store.archive(NEWS).epoch


def test_epoch_is_stored_and_random(tmp_path: Path) -> None:
    one, other = made(tmp_path / "one", 3), made(tmp_path / "other", 3)
    assert epoch_of(one) == epoch_of(one)
    assert epoch_of(one) != epoch_of(other)


def restore(directory: Path, backup: Path) -> None:
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)


def test_restored_directory_does_not_repeat_the_epochs_of_old_and_new_topics(
    directory: Path,
) -> None:
    """Restore the durable marks too, so that only chance makes a difference."""
    backup = directory.with_name("backup")
    shutil.copytree(made(directory, 5), backup)
    epochs, new_epochs = set(), set()
    for _ in range(2):
        (directory / DATABASE).unlink()
        epochs.add(epoch_of(directory))
        restore(directory, backup)
        with PublicationStore.open(made(directory, 5, topic=CHAT)) as store:
            new_epochs.add(store.archive(CHAT).epoch)
        restore(directory, backup)
    assert {losses_of(epoch) for epoch in epochs} == {1}
    assert len(epochs) == len(new_epochs) == 2


def test_loss_of_uncommitted_records_keeps_the_epoch(directory: Path) -> None:
    with PublicationStore.open(directory) as store:
        write(store, 3)
        archive = store.archive(NEWS)
        archive.write(3, publication(3))
        assert (archive.end, archive.durable_end) == (4, 3)
        kept = archive.epoch, archive.chain_at(3)
        shutil.copytree(directory, directory.with_name("crashed"))
    with PublicationStore.open(directory.with_name("crashed")) as store:
        archive = store.archive(NEWS)
        assert (archive.epoch, archive.chain_at(archive.end)) == kept


# -- chains --------------------------------------------------------------------------------


def chain_of(directory: Path) -> list[bytes]:
    """Return the value at every offset of a newly opened store."""
    with PublicationStore.open(directory) as store:
        archive = store.archive(NEWS)
        return [archive.chain_at(offset) for offset in range(archive.end + 1)]


def test_chain_does_not_depend_on_segments_and_restarts(tmp_path: Path) -> None:
    with PublicationStore.open(tmp_path / "whole") as store:
        archive = store.archive(NEWS)
        archive.write(0, *map(publication, range(200)))
        in_memory = [archive.chain_at(offset) for offset in range(201)]
        store.commit()
        assert [archive.chain_at(offset) for offset in range(201)] == in_memory
    made(tmp_path / "parts", 1, 62, 2, 70)
    made(tmp_path / "parts", 65)
    assert chain_of(tmp_path / "whole") == chain_of(tmp_path / "parts") == in_memory
    assert len(set(in_memory)) == 201


def test_chain_survives_a_recovery_without_losses(directory: Path) -> None:
    made(directory, *[7] * 20)
    before = chain_of(directory)
    change(directory, "UPDATE packs SET pack = 100 - pack")  # out of order
    assert chain_of(directory) == before
    flip(directory / DATABASE, 20, 255)
    assert chain_of(directory) == before


def lose_id(directory: Path) -> None:
    data = (directory / DATABASE).read_bytes()
    flip(directory / DATABASE, data.index(publication(40).id) + 3)


@pytest.mark.parametrize(
    ("counts", "lose", "equal"),
    [((3, 2, 100), lose_second_segment, 4), ((100,), lose_id, 41)],
)
def test_chain_changes_after_publications_lost_with_their_ids(
    directory: Path, counts: tuple[int, ...], lose: Callable[[Path], None], equal: int
) -> None:
    made(directory, *counts)
    before = chain_of(directory)
    lose(directory)
    for _ in range(2):
        pairs = list(zip(before, chain_of(directory), strict=True))
        assert [one == two for one, two in pairs] == [place < equal for place in range(len(pairs))]


def test_chain_survives_a_lost_publication_with_an_intact_id(directory: Path) -> None:
    made(directory, 100)
    before = chain_of(directory)
    damage_publication(directory, b"news 40 news 40 ")
    with PublicationStore.open(directory) as store:
        assert (store.recovery.lost, len(offsets(store))) == (1, 99)
    for _ in range(2):
        assert chain_of(directory) == before
        change(directory, "INSERT INTO packs(body) SELECT body FROM packs")  # rebuilt once more


def test_chain_survives_a_quarantined_publication(directory: Path) -> None:
    made(directory, 100)
    before = chain_of(directory)
    with PublicationStore.open(directory) as store:
        store.archive(NEWS).discard(40)
        store.commit()
        assert store.archive(NEWS).chain_at(50) == before[50]
    assert chain_of(directory) == before
    damage_publication(directory, b"news 40 news 40 ")  # the reason for the quarantine
    assert chain_of(directory) == before


def remove_marks(directory: Path) -> None:
    for name in PROMISES:
        (directory / name).unlink()


def test_store_id_survives_the_loss_of_either_file(directory: Path) -> None:
    ids = []
    for lose in (lambda _: None, lambda each: (each / DATABASE).unlink(), remove_marks):
        lose(directory)
        with PublicationStore.open(directory) as store:
            ids.append(store.id)
    assert len(set(ids)) == 1


def test_file_without_durable_marks_keeps_its_epochs_only_if_it_is_intact(directory: Path) -> None:
    two_topics(directory)
    for name in PROMISES:
        (directory / name).write_bytes(b"nonsense")
    epochs_after(directory, news=0, chat=0)
    assert damaged(directory) == []
    remove_marks(directory)
    flip(directory / DATABASE, 20, 255)
    epochs_after(directory, news=1, chat=1)


@pytest.mark.parametrize("name", PROMISES)
def test_one_damaged_durable_mark_of_two_does_no_harm(directory: Path, name: str) -> None:
    two_topics(directory)
    flip(directory / name, 20)
    epochs_after(directory, news=0, chat=0)


@pytest.mark.parametrize("is_of_earlier_epoch", [False, True])
def test_old_copy_of_the_file_is_detected(directory: Path, is_of_earlier_epoch: bool) -> None:
    made(directory, 5)
    shutil.copy(directory / DATABASE, directory / "backup")
    if is_of_earlier_epoch:
        (directory / DATABASE).unlink()
    made(directory, 5)
    shutil.copy(directory / "backup", directory / DATABASE)
    assert state(directory) == (list(range(5)), 1 + is_of_earlier_epoch)


def test_durable_mark_of_another_store_is_ignored(tmp_path: Path) -> None:
    ours, other = made(tmp_path / "ours", 3), made(tmp_path / "other", 9, 9)
    for name in PROMISES:
        shutil.copy(other / name, ours / name)
    assert state(ours) == ([0, 1, 2], 0)
    with PublicationStore.open(ours) as store:
        assert store.recovery.damage is None


# -- quarantined files --------------------------------------------------------------------


def test_only_the_newest_damaged_files_are_kept(directory: Path) -> None:
    made(directory, 5)
    for _ in range(4):
        flip(directory / DATABASE, 20, 255)
        made(directory, 1)
    assert damaged(directory) == [f"{DATABASE}.damaged-{n}" for n in (3, 4)][-DAMAGED_MAX:]
    assert state(directory)[0] == list(range(9))


def test_damaged_file_is_quarantined_with_its_write_ahead_log(directory: Path) -> None:
    crashed(directory, 5)
    wal = (directory / f"{DATABASE}-wal").read_bytes()
    (directory / DATABASE).write_bytes(b"nonsense" * 1000)
    assert state(directory)[0] == list(range(5))
    aside = f"{DATABASE}.damaged-1"
    assert damaged(directory) == [aside, f"{aside}-wal"]
    assert (directory / f"{aside}-wal").read_bytes() == wal


@pytest.mark.parametrize("moment", ["incomplete", "complete", "old one gone"])
def test_interrupted_recovery_is_completed(directory: Path, moment: str) -> None:
    made(directory, 5)
    shutil.copy(directory / DATABASE, directory / "sound")
    flip(directory / DATABASE, 20, 255)
    suffix = ".rebuilding" if moment == "incomplete" else ".new"
    (directory / "sound").rename(directory / f"{DATABASE}{suffix}")
    if moment == "incomplete":
        (directory / f"{DATABASE}{suffix}").write_bytes(b"half of it")
    if moment == "old one gone":
        (directory / DATABASE).unlink()
    assert state(directory) == (list(range(5)), 0)
    assert not list(directory.glob("*.new")) + list(directory.glob("*.rebuilding"))
