"""Hashed Patricia trie of the paper, stored as buckets (section 4.2)."""

from collections.abc import Iterator
from hashlib import blake2b
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core import trie as trie_module
from skipring.core.prefix import ALL, Prefix
from skipring.core.publications import ID_BITS, ID_BYTES
from skipring.core.summaries import (
    DIGEST_BYTES,
    EMPTY,
    EMPTY_ROOT,
    digest_of,
    inner_digest,
    leaf_digest,
)
from skipring.core.trie import BUCKET_IDS, OFFSET_BYTES, PublicationTrie
from tests.support.machines import unhurried
from tests.support.reference_trie import ReferenceTrie

SHAPES = ("random", "clustered", "deep")
SIZES = (0, 1, 2, 3, BUCKET_IDS, BUCKET_IDS + 1, 100, 600)


def keys_of(shape: str, size: int, seed: int = 0) -> list[bytes]:
    """Return different ids: uniform like hashes, or some or all with long common prefixes."""
    rng = Random(f"{shape}/{seed}")
    stems = [rng.randbytes(ID_BYTES) for _ in range(4)]
    keys: dict[bytes, None] = {}
    while len(keys) < size:
        cut = {"random": 0, "clustered": rng.choice([0, 1, 7, 8, 9, 20, 30]), "deep": 30}[shape]
        stem = stems[0 if shape == "deep" else rng.randrange(4)]
        keys[stem[:cut] + rng.randbytes(ID_BYTES - cut)] = None
    return list(keys)


def trie_of(keys: list[bytes], batch: int = 10**6) -> PublicationTrie:
    trie = PublicationTrie()
    for start in range(0, len(keys), batch):
        chosen = range(start, min(start + batch, len(keys)))
        trie.add_many((keys[offset], offset) for offset in chosen)
    return trie


def reference_of(keys: list[bytes]) -> ReferenceTrie:
    trie = ReferenceTrie()
    trie.add_many((key, 0) for key in keys)
    return trie


def bits_of(key: bytes) -> str:
    return format(int.from_bytes(key, "big"), f"0{ID_BITS}b")


def node_at(trie: PublicationTrie, bits: str) -> tuple[str, bytes] | None:
    node = trie.node(Prefix.parse(bits))
    return (node.prefix.bits, node.digest) if node is not None else None


def around(labels: list[str]) -> Iterator[str]:
    """Return prefixes at which a trie with these labels may be wrong, each once."""
    found = {""}
    for label in labels:
        found |= {label, label[:-1], label[: len(label) // 2]}
        if label:
            found.add(label[:-1] + ("1" if label[-1] == "0" else "0"))
        if len(label) < ID_BITS:
            found |= {label + "0", label + "1"}
    return iter(sorted(found))


key_lists = st.builds(keys_of, st.sampled_from(SHAPES), st.integers(0, 80), st.integers(0, 2**32))


# -- the paper's trie --------------------------------------------------------------------------


def papers_digest(keys: list[str]) -> bytes:
    """Return the digest by section 4.2: the keys part at some bit; both sides are tries again."""
    if len(keys) == 1:
        data = int(keys[0], 2).to_bytes(ID_BYTES, "big")
        return blake2b(data, digest_size=16, person=b"skipring leaf").digest()
    bit = next(bit for bit in range(ID_BITS) if len({key[bit] for key in keys}) == 2)
    zero, one = ([key for key in keys if key[bit] == side] for side in "01")
    both = papers_digest(zero) + papers_digest(one)
    return blake2b(both, digest_size=16, person=b"skipring inner").digest()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 2, 3, 40])
def test_reference_is_the_trie_of_the_paper(shape: str, size: int) -> None:
    keys = keys_of(shape, size)
    assert reference_of(keys).root() == papers_digest([bits_of(key) for key in keys])


def test_T1_digest_of_an_inner_node_covers_the_digests_of_its_children_and_no_label() -> None:
    left, right = bytes(ID_BYTES), b"\xff" * ID_BYTES
    near = right[:-1] + b"\xfe"
    both = inner_digest(leaf_digest(left), leaf_digest(right))
    assert trie_of([left, right]).root() == both
    assert trie_of([left, right, near]).root() == inner_digest(
        leaf_digest(left), inner_digest(leaf_digest(near), leaf_digest(right))
    )


def test_T2_root_of_an_empty_trie_is_unique() -> None:
    trie = PublicationTrie()
    assert trie.root() == EMPTY_ROOT == ReferenceTrie().root()
    assert len(EMPTY_ROOT) == DIGEST_BYTES
    assert (trie.node(), trie.digest(ALL), digest_of([])) == (None, EMPTY, EMPTY)
    assert trie.is_fresh
    trie.add(bytes(ID_BYTES), 0)
    assert trie.root() != EMPTY_ROOT


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_node_equals_the_node_of_the_paper(shape: str, size: int) -> None:
    keys = keys_of(shape, size)
    trie, reference = trie_of(keys, batch=50), reference_of(keys)
    nodes = list(reference.nodes())
    assert trie.root() == reference.root()
    for label, digest in nodes:
        assert node_at(trie, label) == (label, digest)
        assert trie.digest(Prefix.parse(label)) == digest
    for bits in around([label for label, _ in nodes[:200]]):
        assert node_at(trie, bits) == reference.node(bits)


@unhurried
@given(key_lists)
def test_every_prefix_has_the_node_of_the_paper(keys: list[bytes]) -> None:
    trie, reference = trie_of(keys), reference_of(keys)
    for bits in around([label for label, _ in reference.nodes()]):
        expected = reference.node(bits)
        assert node_at(trie, bits) == expected
        assert trie.digest(Prefix.parse(bits)) == (expected[1] if expected else EMPTY)


@pytest.mark.parametrize("shape", SHAPES)
def test_root_equals_that_of_the_paper_after_every_insert(shape: str) -> None:
    trie, reference = PublicationTrie(), ReferenceTrie()
    for offset, key in enumerate(keys_of(shape, 150)):
        assert trie.add(key, offset)
        reference.add(key, 0)
        assert trie.root() == reference.root()
    assert len(trie) == len(reference) == 150


@unhurried
@given(key_lists, st.randoms(use_true_random=False), st.integers(1, 100))
def test_order_and_batches_of_inserts_do_not_matter(
    keys: list[bytes], rng: Random, size: int
) -> None:
    once = trie_of(keys)
    shuffled = list(keys)
    rng.shuffle(shuffled)
    trie = trie_of(shuffled, batch=size)
    assert trie.root() == once.root()
    assert list(trie.keys()) == list(once.keys()) == sorted(keys)


@unhurried
@given(key_lists)
def test_children_are_the_two_halves_of_an_inner_node(keys: list[bytes]) -> None:
    trie, reference = trie_of(keys), reference_of(keys)
    waiting = [trie.node()] if keys else []
    seen = []
    while waiting:
        node = waiting.pop()
        seen.append((node.prefix.bits, node.digest))
        if node.is_leaf:
            assert node.key in trie
        else:
            zero, one = trie.children(node)
            assert node.digest == inner_digest(zero.digest, one.digest)
            waiting += (zero, one)
    assert sorted(seen) == sorted(reference.nodes())


# -- single ids --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_id_is_found_with_its_offset_and_no_other(shape: str, size: int) -> None:
    keys, others = keys_of(shape, size), keys_of(shape, 50, seed=1)
    trie = trie_of(keys, batch=7)
    for offset, key in enumerate(keys):
        assert key in trie
        assert trie.offset_of(key) == offset
    for key in others:
        assert key not in trie
        assert trie.offset_of(key) is None


def test_known_id_is_not_inserted_again() -> None:
    keys = keys_of("random", 40)
    trie = trie_of(keys)
    root = trie.root()
    assert not trie.add(keys[3], 1000)
    assert trie.add_many([(key, 1000) for key in keys]) == 0
    assert (len(trie), trie.root(), trie.offset_of(keys[3])) == (40, root, 3)
    assert trie.is_fresh, "nothing has changed"


def test_new_ids_are_counted_once() -> None:
    keys = keys_of("clustered", 30)
    trie = trie_of(keys[:10])
    assert trie.add_many([(key, 0) for key in keys + keys]) == 20
    assert len(trie) == 30


@unhurried
@given(key_lists, st.data())
def test_T12_id_can_be_removed(keys: list[bytes], data: st.DataObject) -> None:
    trie = trie_of(keys, batch=9)
    gone = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
    if data.draw(st.booleans()):
        assert trie.hash_some(10**6)
    for key in sorted(gone):
        assert trie.remove(key)
        assert not trie.remove(key)
    left = [key for key in keys if key not in gone]
    assert len(trie) == len(left)
    assert list(trie.keys()) == sorted(left)
    assert trie.root() == reference_of(left).root()


def test_T12_removed_id_can_be_inserted_again() -> None:
    keys = keys_of("random", 100)
    trie = trie_of(keys)
    root = trie.root()
    trie.remove(keys[5])
    assert trie.root() != root
    assert trie.add(keys[5], 100)
    assert (trie.root(), trie.offset_of(keys[5])) == (root, 100)


@pytest.mark.parametrize("size", [8, 9, 31, 32])
def test_id_is_found_by_a_prefix(size: int) -> None:
    keys = keys_of("random", 500)
    trie = trie_of(keys)
    for offset, key in enumerate(keys):
        assert trie.find(key[:size]) == (key, offset)
    for key in keys_of("random", 100, seed=1):
        assert trie.find(key[:size]) is None


def test_bytes_across_two_records_are_not_found_as_an_id() -> None:
    trie = PublicationTrie()
    first, second = keys_of("random", 2)
    offset = 0x0102030405
    trie.add(first, offset)
    trie.add(second, 0)
    wrong = first[-3:] + offset.to_bytes(OFFSET_BYTES, "big") + second[:24]
    for size in (8, 12, ID_BYTES):
        assert trie.find(wrong[:size]) is None
    assert wrong not in trie
    assert not trie.remove(wrong)
    assert trie.add(wrong, 7)
    assert trie.find(wrong[:8]) == (wrong, 7)
    assert trie.remove(wrong)
    assert list(trie.keys()) == sorted([first, second])


def test_id_that_also_occurs_across_a_record_border_is_found() -> None:
    trie = PublicationTrie()
    (first,) = keys_of("random", 1)
    shifted = first[1:] + b"\0"  # the next byte is the first of the offset
    trie.add(first, 0)
    assert shifted not in trie
    assert trie.add(shifted, 1)
    assert list(trie.entries(Prefix.of_id(shifted))) == [(shifted, 1)]


# -- ids under a prefix ------------------------------------------------------------------------


@unhurried
@given(key_lists, st.data())
def test_ids_under_a_prefix_are_returned_in_order(keys: list[bytes], data: st.DataObject) -> None:
    trie = trie_of(keys, batch=data.draw(st.integers(1, 100)))
    stem = data.draw(st.sampled_from(keys)) if keys else bytes(ID_BYTES)
    bits = bits_of(stem)[: data.draw(st.integers(0, ID_BITS))]
    prefix = Prefix.parse(bits)
    for chosen in (prefix, prefix.sibling) if bits else (prefix,):
        inside = sorted(key for key in keys if bits_of(key).startswith(chosen.bits))
        assert list(trie.keys(chosen)) == inside
        assert list(trie.entries(chosen)) == [(key, keys.index(key)) for key in inside]
        for count in (0, 1, len(inside) - 1, len(inside), len(inside) + 1):
            if count >= 0:
                assert trie.has_at_most(count, chosen) is (len(inside) <= count)


def test_offsets_may_be_large() -> None:
    trie = PublicationTrie()
    last = (1 << 8 * OFFSET_BYTES) - 1
    key = b"\xff" * ID_BYTES
    trie.add(key, last)
    assert list(trie.entries(Prefix.of_id(key))) == [(key, last)]


# -- doubling ----------------------------------------------------------------------------------


def test_nothing_is_lost_when_the_buckets_double_several_times_at_once() -> None:
    few, many, more = keys_of("random", 14), keys_of("deep", 3000), keys_of("random", 20, seed=1)
    trie = trie_of(few)
    assert trie.hash_some(10**6)
    # All of these are in one place: most other buckets stay unchanged.
    trie.add_many((key, 14 + offset) for offset, key in enumerate(many))
    keys = few + many
    for offset, key in enumerate(keys):
        assert trie.offset_of(key) == offset
    assert trie.snapshot().root() == reference_of(keys).root()
    for key in more:
        assert key not in trie
        assert trie.add(key, len(keys))
        keys.append(key)
    assert trie.root() == reference_of(keys).root()
    assert list(trie.entries()) == sorted((key, offset) for offset, key in enumerate(keys))


@pytest.mark.parametrize("shape", SHAPES)
def test_buckets_that_are_not_split_yet_are_read_as_if_they_were(shape: str) -> None:
    trie, keys = trie_of(few := keys_of(shape, 14)), list(few)
    crowd = keys_of("deep", 16 * BUCKET_IDS, seed=3)  # in one place: the others are not split
    trie.add_many((key, 100 + offset) for offset, key in enumerate(crowd))
    reference = reference_of([*keys, *crowd])
    for key in keys:
        assert trie.find(key[:8]) is not None
    for bits in around([label for label, _ in reference_of(keys).nodes()]):
        assert node_at(trie.snapshot(), bits) == reference.node(bits)
    assert list(trie.keys()) == sorted([*keys, *crowd])
    assert trie.remove(keys.pop(0))
    assert trie.root() == reference_of([*keys, *crowd]).root()


# -- slices ------------------------------------------------------------------------------------


def hashed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the ids that are hashed from now on."""
    keys: list[bytes] = []

    def counted(some: list[bytes]) -> bytes:
        keys.extend(some)
        return digest_of(some)

    monkeypatch.setattr(trie_module, "digest_of", counted)
    return keys


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("slice_ids", [1, 50, 1000])
def test_digests_computed_in_slices_are_the_same(shape: str, slice_ids: int) -> None:
    keys = keys_of(shape, 1000)
    trie = trie_of(keys)
    assert not trie.is_fresh
    for _ in range(2 * len(keys)):
        if trie.hash_some(slice_ids):
            break
    assert trie.is_fresh
    assert trie.root() == reference_of(keys).root()
    assert trie.wrong_digests() == {}


@pytest.mark.parametrize("slice_ids", [16, 100, 500])
def test_slice_is_no_longer_than_requested(slice_ids: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trie = trie_of(keys_of("random", 4000), batch=100)
    keys = hashed(monkeypatch)
    sizes = []
    while not trie.hash_some(slice_ids):
        sizes.append(len(keys))
        keys.clear()
    assert sizes
    assert max(sizes) <= 2 * slice_ids + 3 * BUCKET_IDS


def test_fresh_trie_hashes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trie = trie_of(keys_of("random", 500))
    assert trie.hash_some(10**6)
    keys = hashed(monkeypatch)
    assert trie.hash_some(1)
    assert trie.root()
    assert keys == []


def test_insert_causes_a_new_hash_of_one_bucket_only(monkeypatch: pytest.MonkeyPatch) -> None:
    trie = trie_of(keys_of("random", 1000))
    assert trie.hash_some(10**6)
    keys = hashed(monkeypatch)
    trie.add(bytes(ID_BYTES), 0)
    assert not trie.is_fresh
    assert trie.root()
    assert 0 < len(keys) <= 3 * BUCKET_IDS


# -- corrupted memory --------------------------------------------------------------------------


def scrub_all(trie: PublicationTrie, slice_ids: int) -> list[tuple[bytes, int]]:
    """Scrub all buckets once; return the ids that were visited."""
    seen: list[tuple[bytes, int]] = []
    while len(seen) < len(trie):
        seen += trie.scrub(slice_ids)
    return seen


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("slice_ids", [1, 16, 1000])
def test_T10_scrub_visits_all_ids_and_starts_again(shape: str, slice_ids: int) -> None:
    keys = keys_of(shape, 200)
    trie = trie_of(keys)
    expected = sorted((key, offset) for offset, key in enumerate(keys))
    for _ in range(2):
        seen = scrub_all(trie, slice_ids)
        assert sorted(seen[: len(keys)]) == expected, "none twice before all were there"


@pytest.mark.parametrize("slice_ids", [1, 16, 100])
def test_T10_scrub_hashes_only_its_slice(slice_ids: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trie = trie_of(keys_of("random", 2000), batch=100)
    assert trie.hash_some(10**6)
    keys = hashed(monkeypatch)
    for _ in range(50):
        keys.clear()
        entries = trie.scrub(slice_ids)
        assert slice_ids <= len(entries) <= slice_ids + 3 * BUCKET_IDS
        assert len(keys) <= slice_ids + 3 * BUCKET_IDS


def corruptible(trie: PublicationTrie) -> list[Prefix]:
    """Return all prefixes whose digests the trie keeps."""
    return [
        Prefix(length, value)
        for length in range(trie.bucket_bits + 1)
        for value in range(1 << length)
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_T10_any_single_corrupted_digest_is_listed_and_repaired(shape: str) -> None:
    keys = keys_of(shape, 70)
    trie = trie_of(keys)
    root = trie.root()
    assert len(corruptible(trie)) > 7
    for prefix in corruptible(trie):
        trie.corrupt({prefix: b"x" * DIGEST_BYTES})
        assert trie.wrong_digests() == {prefix: b"x" * DIGEST_BYTES}
        scrub_all(trie, 5)
        scrub_all(trie, 5)  # the pass may have started in the middle
        assert trie.wrong_digests() == {}
        assert trie.root() == root


@unhurried
@given(key_lists.filter(bool), st.data())
def test_T10_any_corrupted_digests_are_listed_and_repaired(
    keys: list[bytes], data: st.DataObject
) -> None:
    trie = trie_of(keys, batch=data.draw(st.integers(1, 100)))
    if data.draw(st.booleans()):
        assert trie.hash_some(10**6)
    for _ in range(data.draw(st.integers(0, 2))):
        trie.scrub(data.draw(st.integers(1, 40)))
    prefixes = st.sampled_from(corruptible(trie))
    wrong = data.draw(st.dictionaries(prefixes, st.sampled_from([b"", b"x" * DIGEST_BYTES])))
    trie.corrupt(wrong)
    right = reference_of(keys)
    expected = {
        prefix: digest
        for prefix, digest in wrong.items()
        if digest != ((right.node(prefix.bits) or ("", EMPTY))[1])
    }
    assert trie.wrong_digests() == expected
    for _ in range(1 << trie.bucket_bits):
        trie.scrub(1)
    assert trie.wrong_digests() == {}
    assert trie.root() == right.root()


def test_T10_digests_repaired_while_the_trie_grows_are_right() -> None:
    keys = keys_of("random", 400)
    trie = trie_of(keys[:100])
    assert trie.hash_some(10**6)
    trie.corrupt(dict.fromkeys(corruptible(trie), b"x" * DIGEST_BYTES))
    for offset, key in enumerate(keys[100:], start=100):
        trie.add(key, offset)
        trie.scrub(4)
    scrub_all(trie, 4)
    scrub_all(trie, 4)
    assert trie.wrong_digests() == {}
    assert trie.root() == reference_of(keys).root()


def test_T10_digests_of_prefixes_below_the_kept_ones_cannot_be_corrupted() -> None:
    trie = trie_of(keys_of("random", 3))
    root = trie.root()
    trie.corrupt({Prefix.parse("0"): b"x" * DIGEST_BYTES, Prefix(ID_BITS, 0): b"y" * DIGEST_BYTES})
    assert trie.wrong_digests() == {}
    assert trie.root() == root


def test_T10_insert_drops_corrupted_digests_above_it() -> None:
    trie = trie_of(keys_of("random", 3))
    trie.corrupt({ALL: b"x" * DIGEST_BYTES})
    trie.add(bytes(ID_BYTES), 3)
    assert trie.wrong_digests() == {}


@unhurried
@given(key_lists.filter(bool), st.data())
def test_T10_corrupted_trie_can_still_be_traversed(keys: list[bytes], data: st.DataObject) -> None:
    trie = trie_of(keys)
    assert trie.hash_some(10**6)
    prefixes = st.sampled_from(corruptible(trie))
    trie.corrupt(data.draw(st.dictionaries(prefixes, st.sampled_from([b"", b"x" * DIGEST_BYTES]))))
    root = trie.node()
    waiting = [root] if root is not None else []
    while waiting:
        node = waiting.pop()
        below = [] if node.is_leaf else trie.children(node)
        assert len(below) <= 2
        for child in below:
            assert node.prefix.covers(child.prefix)
            assert child.prefix.length > node.prefix.length
        waiting += below


# -- copies ------------------------------------------------------------------------------------


@unhurried
@given(key_lists, st.integers(0, 80))
def test_copy_is_not_changed_by_later_inserts(keys: list[bytes], size: int) -> None:
    before, after = keys[:size], keys[size:]
    trie = trie_of(before)
    copy = trie.snapshot()
    trie.add_many((key, 0) for key in after)
    for key in before[:5]:
        trie.remove(key)
    trie.scrub(10)
    trie.corrupt({ALL: b"x" * DIGEST_BYTES})
    assert len(copy) == len(before)
    assert list(copy.keys()) == sorted(before)
    assert copy.root() == reference_of(before).root()
    copy.add_many((key, 0) for key in after)
    assert copy.root() == reference_of(keys).root()


def test_T10_scrub_continues_at_its_place_when_the_buckets_double() -> None:
    keys = [bytes([first]) + bytes(31) for first in range(0, 256, 2)]
    trie = trie_of(keys)
    before = [key for key, _ in trie.scrub(len(keys) // 2)]
    trie.add_many((bytes([first]) + bytes(31), 0) for first in range(1, 256, 2))
    after = [key for key, _ in trie.scrub(16)]
    assert after[0] > before[-1]


def test_T10_scrub_of_an_emptied_trie_is_a_slice() -> None:
    keys = [bytes([first, second]) + bytes(30) for first in range(64) for second in range(64)]
    trie = trie_of(keys)
    for key in keys:
        trie.remove(key)
    place = trie.scrubbed
    assert trie.scrub(16) == []
    assert trie.scrubbed - place <= 16


# -- wrong counts and sizes ----------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 3, 10**12])
def test_scrub_recounts_the_ids(count: int) -> None:
    trie = hundred_ids()
    trie._count = count
    for _ in range(100):
        trie.scrub(1)
    assert len(trie) == 100


def test_wrong_count_does_not_make_the_trie_larger_than_its_ids() -> None:
    trie = hundred_ids()
    bits = trie.bucket_bits
    trie._count = 10**12
    assert trie.add(b"x" * ID_BYTES, 100)
    assert (len(trie), trie.bucket_bits) == (101, bits)


def test_scrub_recomputes_the_size_of_the_trie() -> None:
    trie = hundred_ids()
    bits, root = trie.bucket_bits, trie.root()
    trie._bits = bits - 1
    trie.scrub(1)
    assert (trie.bucket_bits, trie.root()) == (bits, root)


def hundred_ids() -> PublicationTrie:
    return trie_of([blake2b(bytes([at]), digest_size=ID_BYTES).digest() for at in range(100)])
