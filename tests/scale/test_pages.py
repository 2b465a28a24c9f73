"""Numbers straight from parquet pages are those that pyarrow reads; all else is left to pyarrow."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalcal.errors import FileFormatError, FocalcalError
from focalcal.scale import Partition, Source, _pages
from focalcal.scale._pages import UnusualError, _are_lists, _Chunk, _Page, _run, list_pieces

from .conftest import spell


def save(path, values, *, list_type=None, **settings):
    """One row group with values (N, K), or any nested list, as the column `logits`."""
    k = len(values[0])
    kind = pa.from_numpy_dtype(np.asarray(values[0]).dtype)
    column = pa.array(list(values), list_type or pa.list_(kind, k))
    pq.write_table(pa.table({"logits": column}), path, row_group_size=1 << 20, **settings)
    return str(path)


def lists_and_labels(lists):
    column = pa.array(lists, pa.list_(pa.float32()))
    return pa.table({"logits": column, "labels": np.zeros(len(lists), int)})


def by_pyarrow(path, rows=997):
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(rows):
            yield np.stack(batch.column("logits").to_numpy(zero_copy_only=False))


def pieces(path, k):
    """All rows, and how often pyarrow was asked for them."""
    asked = itertools.count()

    def reader():
        next(asked)
        return by_pyarrow(path)

    with pq.ParquetFile(path) as file:
        found = [p.copy() for p in list_pieces(file, path, 0, "logits", k, reader)]
    return np.concatenate(found), next(asked)


@pytest.mark.parametrize("k", [2, 3, 5, 8, 9, 10, 16, 17, 33, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_plain_pages_need_no_pyarrow(tmp_path, rng, k, dtype):
    z = rng.normal(size=(30_011, k)).astype(dtype)
    path = save(tmp_path / "p.parquet", z, use_dictionary=False)
    found, asked = pieces(path, k)
    assert asked == 0
    assert found.dtype == dtype
    assert np.array_equal(found, z)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_every_codec_and_page_version(tmp_path, rng, compression, version):
    z = rng.normal(size=(5_000, 10)).astype(np.float32)
    path = tmp_path / "p.parquet"
    options = {"compression": compression, "data_page_version": version, "data_page_size": 10_000}
    save(path, z, use_dictionary=False, write_page_checksum=True, **options)
    found, asked = pieces(str(path), 10)
    assert np.array_equal(found, z)
    # Pages of version 2, and codecs that may fill less than a page unnoticed, are left to pyarrow.
    assert asked == (version == "2.0" or compression in ("gzip", "brotli", "lz4"))


@pytest.mark.parametrize("name", ["snappy", "zstd"])
def test_data_that_fill_less_or_more_than_a_page(name):
    """What is not filled would be whatever was in memory."""
    codec = pa.Codec(name)
    chunk = _Chunk("", 2, np.dtype("<f4"), codec, 1, ())
    whole = np.arange(1_000, dtype=np.uint8).tobytes()
    packed = np.frombuffer(codec.compress(whole, asbytes=True), np.uint8)
    assert bytes(chunk._decompressed(packed, 1_000)) == whole
    for size in (0, 500, 999, 1_001, 5_000):
        with pytest.raises(UnusualError):
            chunk._decompressed(packed, size)
    for cut in (0, 1, 20):
        with pytest.raises(UnusualError):
            chunk._decompressed(packed[:cut], 1_000)


@pytest.mark.parametrize("distinct", [3, 2_000, 30_000])
def test_rows_in_dictionary_pages_come_from_pyarrow(tmp_path, rng, distinct):
    """With few different numbers all pages refer to the dictionary, with many only the first."""
    z = rng.choice(rng.normal(size=distinct).astype(np.float32), size=(9_000, 7))
    path = save(tmp_path / "p.parquet", z, dictionary_pagesize_limit=4_000, data_page_size=5_000)
    found, asked = pieces(path, 7)
    assert np.array_equal(found, z)
    assert asked == 1


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("kind", ["list", "large", "fixed"])
def test_every_spelling_of_lists(tmp_path, rng, nullable, kind):
    field = pa.field("element", pa.float32(), nullable)
    makers = {"list": pa.list_, "large": pa.large_list, "fixed": lambda f: pa.list_(f, 6)}
    z = rng.normal(size=(4_000, 6)).astype(np.float32)
    path = tmp_path / "p.parquet"
    save(path, z, list_type=makers[kind](field), use_dictionary=False)
    found, asked = pieces(str(path), 6)
    assert np.array_equal(found, z)
    assert asked == 0


def ragged():
    lists = [np.ones(4, np.float32)] * 3_000
    lists[100], lists[2_000] = lists[0][:3], np.ones(5, np.float32)  # 12,000 numbers all the same
    return lists


def with_null():
    lists = [[1.0, 2.0, 3.0, 4.0]] * 3_000
    lists[1_500] = [1.0, None, 3.0, 4.0]
    return lists


def with_missing_lists():
    lists = [[1.0, 2.0, 3.0, 4.0]] * 3_000
    return [*lists[:10], None, [], [0.0, 0.0, *lists[0]], lists[0], *lists[10:]]


@pytest.mark.parametrize("make", [ragged, with_null, with_missing_lists])
def test_lists_of_other_lengths_and_nulls_are_left_to_pyarrow(tmp_path, make):
    path = tmp_path / "p.parquet"
    save(path, make(), list_type=pa.list_(pa.float32()), use_dictionary=False)
    called = []

    def read():
        called.append(1)
        return iter(())

    with pq.ParquetFile(path) as file:
        list(list_pieces(file, str(path), 0, "logits", 4, read))
    assert called


@pytest.mark.parametrize("make", [ragged, with_null, with_missing_lists])
def test_a_source_refuses_them(tmp_path, make):
    pq.write_table(lists_and_labels(make()), tmp_path / "p.parquet", use_dictionary=False)
    source = Source.open(tmp_path / "p.parquet")
    with pytest.raises(FileFormatError, match=r"expected lists of length|has a null"):
        list(source.partitions[0].batches())


def test_other_types_are_left_to_pyarrow(tmp_path, rng):
    for dtype in (np.int32, np.float16):
        z = rng.integers(0, 9, size=(500, 4)).astype(dtype)
        path = save(tmp_path / "p.parquet", z)
        assert np.array_equal(pieces(path, 4)[0], z)
    table = pa.table({"logits": rng.normal(size=50)})
    pq.write_table(table, tmp_path / "flat.parquet")
    with pq.ParquetFile(tmp_path / "flat.parquet") as file, pytest.raises(UnusualError):
        _Chunk.find(file, str(tmp_path / "flat.parquet"), 0, "logits", 1)
    nested = pa.table({"logits": pa.array([[[1.0, 2.0]], [[3.0, 4.0]]])})
    pq.write_table(nested, tmp_path / "nested.parquet")
    with pq.ParquetFile(tmp_path / "nested.parquet") as file, pytest.raises(UnusualError):
        _Chunk.find(file, str(tmp_path / "nested.parquet"), 0, "logits", 2)


class Pieces(_Chunk):
    """Pages of the numbers 0, 1, 2, … with no file behind them."""

    def _numbers(self, page, file):
        return np.arange(page.first, page.first + page.numbers, dtype=np.float32)


@given(
    width=st.integers(2, 7),
    rows=st.integers(1, 30),
    cuts=st.lists(st.integers(0, 210), max_size=9),
    by_dictionary=st.integers(0, 4),
)
def test_lists_that_go_on_in_the_next_page(width, rows, cuts, by_dictionary):
    n = width * rows
    ends = sorted({min(cut, n) for cut in cuts} | {n})
    firsts = [0, *ends[:-1]]
    pages = tuple(
        _Page(0, 0, 0, 8 if i < min(by_dictionary, len(ends) - 1) else 0, first, end - first)
        for i, (first, end) in enumerate(zip(firsts, ends))
    )
    chunk = Pieces(__file__, width, np.dtype("<f4"), None, 1, pages)
    expected = np.arange(n, dtype=np.float32).reshape(rows, width)
    found = list(chunk.pieces(lambda: iter(np.split(expected, [2, 5]))))
    assert np.array_equal(np.concatenate(found), expected)


def expand(levels: bytes, n: int) -> list[int] | None:
    """Levels one by one, or None where the bytes end too early."""
    out, at = [], 0
    while len(out) < n:
        header = shift = 0
        while True:
            if at >= len(levels):
                return None
            header |= (levels[at] & 127) << shift
            shift += 7
            at += 1
            if levels[at - 1] < 128:
                break
        count = header >> 1
        if header & 1:
            if at + count > len(levels) or not count:
                return None
            out += [byte >> i & 1 for byte in levels[at : at + count] for i in range(8)]
            at += count
        else:
            if at >= len(levels) or not 0 < count <= n - len(out):
                return None
            out += [levels[at]] * count
            at += 1
    return out[:n]


def encode(levels: list[int], lengths: list[int]) -> bytes:
    """Levels as runs: a positive length is a repetition as far as it goes, else groups of eight."""
    out, at = b"", 0
    turns = itertools.cycle(lengths)
    while at < len(levels):
        length = next(turns)
        if length > 0:
            same = next(
                (i for i, x in enumerate(levels[at : at + length]) if x != levels[at]),
                min(length, len(levels) - at),
            )
            out += _run(same, levels[at])
            at += same
        else:
            groups = min(-length, -(-(len(levels) - at) // 8))
            bits = (levels[at : at + 8 * groups] + [0] * 8)[: 8 * groups]
            out += bytes([groups << 1 | 1]) + np.packbits(bits, bitorder="little").tobytes()
            at += 8 * groups
    return out


lengths = st.lists(st.integers(-5, 12).filter(bool), min_size=1, max_size=4)


@settings(max_examples=300)
@given(
    width=st.integers(2, 12),
    n=st.integers(1, 400),
    begun=st.integers(0, 11),
    lengths=lengths,
    change=st.none() | st.tuples(st.integers(0, 399), st.integers(0, 255)),
)
def test_levels_are_recognised_exactly_when_they_say_lists_of_one_length(
    width, n, begun, lengths, change
):
    """Against levels read one by one, for any mixture of runs, and with one byte changed."""
    begun %= width
    wanted = [int((begun + i) % width != 0) for i in range(n)]
    levels = encode(wanted, lengths)
    if change is not None:
        at = change[0] % len(levels)
        levels = levels[:at] + bytes([change[1]]) + levels[at + 1 :]
    truth = expand(levels, n) == wanted
    assert not (_are_lists(levels, n, width, begun) and not truth)
    if change is None:
        assert truth
        assert _are_lists(levels, n, width, begun)


def test_levels_that_never_repeat_are_given_up():
    """No time is spent on pages that only a hostile file holds."""
    levels = b"".join(_run(1, int(i % 3 != 0)) for i in range(60_000))
    assert _are_lists(levels, 60_000, 3, 0)  # they repeat
    rng = np.random.default_rng(0)
    wanted = [int(i % 3 != 0) for i in range(60_000)]
    ragged_runs = rng.choice([-1, -2, -3, 1, 2], size=20_000).tolist()
    assert not _are_lists(encode(wanted, ragged_runs), 60_000, 3, 0)
    assert not _are_lists(b"\xff" * 40, 300, 3, 0)
    assert not _are_lists(b"", 300, 3, 0)
    assert not _are_lists(levels + b"\x00", 60_000, 3, 0)
    padded = encode(wanted, ragged_runs)[:2_000] + bytes(10**7)
    assert not _are_lists(padded, 60_000, 3, 0)


def test_only_short_levels_are_remembered():
    before = _are_lists.cache_info().currsize
    long = _run(1, 0) + _run(1, 1) + b"\x01" * (1 << 17)
    assert not _pages._say_lists(long, 10**6, 2, 0)
    assert _are_lists.cache_info().currsize == before


def test_any_damaged_byte_gives_what_pyarrow_gives_or_an_error(tmp_path, rng):
    z = rng.normal(size=(700, 5)).astype(np.float32)
    path = tmp_path / "p.parquet"
    table = pa.table({**spell("logits", z, "fixed"), "labels": rng.integers(0, 5, 700)})
    pq.write_table(table, path, use_dictionary=False, data_page_size=4_000, compression="none")
    whole = path.read_bytes()
    outcomes = {"same": 0, "error": 0}
    header = [at for at in range(4, 34) for _ in range(30)]
    for at in [*header, *range(34, 400), *rng.integers(4, len(whole) - 900, 200).tolist()]:
        changed = bytearray(whole)
        changed[at] ^= int(rng.integers(1, 256))
        path.write_bytes(changed)
        try:
            with pq.ParquetFile(path) as file:
                expected = file.read(use_threads=False)["logits"].combine_chunks()
                expected = expected.values.to_numpy(zero_copy_only=False).reshape(-1, 5)
        except (pa.ArrowException, OSError):
            expected = None
        try:
            batches = Source.open(path).partitions[0].batches()
            found = np.concatenate([batch.logits for batch in batches])
        except FocalcalError:
            outcomes["error"] += 1
        else:
            outcomes["same"] += 1
            assert np.array_equal(found, expected), at
    assert min(outcomes.values()) > 50


def test_headers_that_no_writer_writes(tmp_path, rng):
    path = save(tmp_path / "p.parquet", rng.normal(size=(300, 4)), use_dictionary=False)
    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(0).column(0)

        class Column:
            dictionary_page_offset = None
            data_page_offset = column.data_page_offset
            total_compressed_size = column.total_compressed_size

        assert sum(p.numbers for p in _pages._find_pages(path, Column)) == 1_200
        for name, value in (
            ("data_page_offset", -3),
            ("data_page_offset", 1 << 40),
            ("total_compressed_size", column.total_compressed_size - 1),
            ("total_compressed_size", 0),
        ):
            wrong = type("Wrong", (Column,), {name: value})
            with pytest.raises(UnusualError):
                list(_pages._find_pages(path, wrong))
    for header in (b"\x15\x00" * 3, b"\x1c" * 1_024, b"\x19\x00", b"\x05\x02\x02\x00", b"\x15\xff"):
        (tmp_path / "h").write_bytes(header)
        fake = type("Fake", (Column,), {"data_page_offset": 0})
        with pytest.raises(UnusualError):
            list(_pages._find_pages(str(tmp_path / "h"), fake))


def test_pages_cut_short(tmp_path, rng):
    path = save(tmp_path / "p.parquet", rng.normal(size=(300, 4)), use_dictionary=False)
    with pq.ParquetFile(path) as file:
        chunk = _Chunk.find(file, path, 0, "logits", 4)
    (page,) = chunk.pages
    end = dataclasses.replace(page, offset=10**6)
    fewer = dataclasses.replace(page, numbers=page.numbers - 1)
    shifted = dataclasses.replace(page, offset=page.offset + 1)
    other = dataclasses.replace(page, encoding=9)
    with Path(path).open("rb") as file:
        assert len(chunk._numbers(page, file)) == 1_200
        for wrong in (end, fewer, shifted, other):
            with pytest.raises(UnusualError):
                chunk._numbers(wrong, file)


def test_a_row_group_that_changed_since_it_was_opened(tmp_path, rng):
    z = rng.normal(size=(300, 4)).astype(np.float32)
    table = {**spell("logits", z, "fixed"), "labels": np.zeros(300, int)}
    pq.write_table(pa.table(table), tmp_path / "p.parquet")
    (partition,) = Source.open(tmp_path / "p.parquet").partitions
    for changes, found in (({"rows": 200}, 300), ({"rows": 400}, 300), ({"row_group": 1}, 0)):
        changed = dataclasses.replace(partition, **changes)
        with pytest.raises(FileFormatError, match=f"has {found} rows, expected {changed.rows}"):
            list(changed.batches())


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_two_row_groups_read_in_turn_do_not_disturb_each_other(
    tmp_path, rng, compression, monkeypatch
):
    """In one thread; batches end in the middle of pages."""
    z = rng.normal(size=(60_000, 4)).astype(np.float32)
    table = {**spell("logits", z, "fixed"), "labels": np.arange(60_000) % 4}
    path = tmp_path / "p.parquet"
    options = {"compression": compression, "use_dictionary": False}
    pq.write_table(pa.table(table), path, row_group_size=30_000, **options)
    monkeypatch.setattr("focalcal.scale.source.BATCH_ELEMENTS", 4 * 7_000)
    first, second = Source.open(path).partitions
    found = list(zip(first.batches(), second.batches()))
    assert len(found) == 5
    for i in (0, 1):
        rows = z[30_000 * i : 30_000 * (i + 1)]
        assert np.array_equal(np.concatenate([pair[i].logits for pair in found]), rows)
        labels = np.concatenate([pair[i].labels for pair in found])
        assert np.array_equal(labels, np.arange(30_000) % 4)


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2), (2, 0)])
def test_lists_whose_length_changes_between_two_pieces(tmp_path, first, then):
    """Two classes may be spelt with one number or with two, but not both."""
    piece = 2**17 // 2
    lists = [[3.0] * first] * piece + [[3.0] * then] * 100
    table = lists_and_labels(lists)
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=1 << 20)
    (partition,) = Source.open(tmp_path / "p.parquet").partitions
    with pytest.raises(FileFormatError, match=f"expected lists of length {first}"):
        list(partition.batches())


@pytest.mark.parametrize("k", [4, 70])
def test_fewer_rows_or_labels_than_the_footer_says(tmp_path, rng, monkeypatch, k):
    table = lists_and_labels(rng.normal(size=(300, k)).tolist())
    pq.write_table(table, tmp_path / "p.parquet")
    (partition,) = Source.open(tmp_path / "p.parquet").partitions
    read = Partition._read

    def shorter(self, file, names, size):
        for batch in read(self, file, names, size):
            yield batch.slice(0, 250)

    monkeypatch.setattr(Partition, "_read", shorter)
    with pytest.raises(FileFormatError, match="250 rows instead of 300"):
        list(partition.batches(rows=300))
    if k == 4:

        def no_labels(self, file, names, size):
            return iter(()) if names == ["labels"] else read(self, file, names, size)

        monkeypatch.setattr(Partition, "_read", no_labels)
        with pytest.raises(FileFormatError, match="fewer labels than rows"):
            list(partition.batches())


def test_class_1_of_two_stays_a_vector(tmp_path, rng):
    z = rng.normal(size=500).astype(np.float32)
    pq.write_table(pa.table({"logits": z, "labels": np.arange(500) % 2}), tmp_path / "p.parquet")
    (batch,) = Source.open(tmp_path / "p.parquet").partitions[0].batches()
    assert np.array_equal(batch.logits, z)


def test_a_path_that_is_no_text(tmp_path, rng):
    """Found by the fuzz tests: the footer names a column once more, in bytes that are no UTF-8."""
    z = rng.normal(size=(300, 4)).astype(np.float32)
    path = save(tmp_path / "p.parquet", z, use_dictionary=False)
    data = Path(path).read_bytes()
    at = data.rfind(b"element")
    Path(path).write_bytes(data[:at] + b"ele\xcaent" + data[at + 7 :])
    with pq.ParquetFile(path) as file:
        with pytest.raises(UnicodeDecodeError):
            _ = file.metadata.row_group(0).column(0).path_in_schema
        with pytest.raises(UnusualError):
            _Chunk.find(file, path, 0, "logits", 4)
    assert np.array_equal(pieces(path, 4)[0], z)
