"""Lists of numbers straight from the pages of a parquet file.

pyarrow finds out number by number where each list ends: half of the time of a pass over short
lists. But pages of equally long lists without nulls say so in bytes that repeat themselves, which
is quickly checked. Their numbers are then taken as they lie; everything else is left to pyarrow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from focalcal._blocks import scratch
from focalcal._formats import is_list, pyarrow_module

_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _RUNS = 0, 3
_HEADER_BYTES = 1024
_LARGEST_PAGE = 1 << 26
_MOST_RUNS = 1000
_SHORT_LEVELS = 1 << 17
_CODECS = ("UNCOMPRESSED", "SNAPPY", "ZSTD")
"""The others do not tell how much of a buffer they filled; only pyarrow's own reader knows."""
_NUMBERS = {"FLOAT": ("float", np.dtype("<f4")), "DOUBLE": ("double", np.dtype("<f8"))}

Reader = Callable[[], Iterable[np.ndarray]]


class UnusualError(Exception):
    """Pages that pyarrow should read."""


def list_pieces(
    file: Any, path: str, row_group: int, name: str, width: int, read: Reader
) -> Iterator[np.ndarray]:
    """A column of lists of `width` numbers, as arrays (n, width) in order, perhaps read-only.

    read: the same by pyarrow, which is an error where a list has another length or a null.
    """
    done = 0
    try:
        for piece in _Chunk.find(file, path, row_group, name, width).pieces(read):
            yield piece
            done += len(piece)
        return
    except UnusualError:
        pass
    for piece in read():
        if done < len(piece):
            yield piece[done:]
        done = max(done - len(piece), 0)


@dataclasses.dataclass(frozen=True)
class _Page:
    """A page of numbers: where its bytes lie, how they are stored, and which numbers they are."""

    offset: int
    compressed: int
    size: int
    encoding: int
    first: int
    numbers: int


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """The pages of one column of one row group, whose lists have `width` numbers of one kind.

    defined: the level at which a number is there and not null.
    """

    path: str
    width: int
    kind: np.dtype
    codec: Any
    defined: int
    pages: tuple[_Page, ...]

    @classmethod
    def find(cls, file: Any, path: str, row_group: int, name: str, width: int) -> Self:
        """Look at the headers of all pages."""
        group, codec = file.metadata.row_group(row_group), None
        columns = [group.column(i) for i in range(group.num_columns)]
        try:
            paths = [c.path_in_schema for c in columns]
        except UnicodeDecodeError as error:
            raise UnusualError from error
        leaves = [i for i, p in enumerate(paths) if p.startswith(f"{name}.")]
        if len(leaves) != 1 or name in paths:
            raise UnusualError
        column, schema = columns[leaves[0]], file.schema.column(leaves[0])
        said, kind = _NUMBERS.get(column.physical_type, ("", None))
        type_ = file.schema_arrow.field(name).type
        defined, numbers = schema.max_definition_level, group.num_rows * width
        if (
            not is_list(type_)
            or str(type_.value_type) != said
            or schema.max_repetition_level != 1
            or defined < 1
            or column.compression not in _CODECS
            or column.num_values != numbers
        ):
            raise UnusualError
        if column.compression != "UNCOMPRESSED":
            codec = pyarrow_module().Codec(column.compression.lower())
        pages = tuple(_find_pages(path, column))
        if sum(page.numbers for page in pages) != numbers:
            raise UnusualError
        return cls(path, width, kind, codec, defined, pages)

    def pieces(self, read: Reader) -> Iterator[np.ndarray]:
        """First rows by pyarrow, as far as pages refer to a dictionary; then from the pages."""
        start = next((i for i, p in enumerate(self.pages) if p.encoding == _PLAIN), 0)
        rows = -(-self.pages[start].first // self.width)
        yield from _first_rows(read, rows)
        begin, rest = rows * self.width, np.empty(0, self.kind)
        with Path(self.path).open("rb", buffering=0) as file:
            for page in self.pages[start:]:
                numbers = self._numbers(page, file)[max(begin - page.first, 0) :]
                if len(rest):  # a list that began in the page before
                    missing = self.width - len(rest)
                    rest, numbers = np.append(rest, numbers[:missing]), numbers[missing:]
                    if len(rest) == self.width:
                        yield rest.reshape(1, -1)
                        rest = rest[:0]
                whole = len(numbers) - len(numbers) % self.width
                yield numbers[:whole].reshape(-1, self.width)
                rest = np.append(rest, numbers[whole:])

    def _numbers(self, page: _Page, file: Any) -> np.ndarray:
        """The numbers of a page that goes on with lists of `width` numbers."""
        if page.encoding != _PLAIN:
            raise UnusualError
        shape = (page.compressed,)
        # What is not decompressed from it outlives this call.
        data = scratch("page", shape, np.uint8) if self.codec else np.empty(shape, np.uint8)
        file.seek(page.offset)
        if file.readinto(data) != len(data):
            raise UnusualError
        if self.codec is not None:
            data = self._decompressed(data, page.size)
        lists, start = _levels(data, 0)
        defined, start = _levels(data, start)
        if (
            memoryview(data).nbytes != start + page.numbers * self.kind.itemsize
            or defined != _run(page.numbers, self.defined)
            or not _say_lists(lists, page.numbers, self.width, page.first % self.width)
        ):
            raise UnusualError
        return np.frombuffer(data, self.kind, page.numbers, start)

    def _decompressed(self, data: np.ndarray, size: int) -> Any:
        """So many bytes, no fewer: snappy's data begin with their number, zstd checks it."""
        try:
            if self.codec.name == "snappy" and _varint(bytes(data[:10]), 0)[0] != size:
                raise UnusualError
            return self.codec.decompress(data, size)
        except (pyarrow_module().ArrowException, OSError, IndexError) as error:
            raise UnusualError from error


def _levels(data: Any, at: int) -> tuple[bytes, int]:
    """Levels in a page: a length in four bytes, then so many bytes; and where they end."""
    view = memoryview(data)
    end = at + 4 + int.from_bytes(view[at : at + 4], "little")
    return bytes(view[at + 4 : end]), end


def _first_rows(read: Reader, n: int) -> Iterator[np.ndarray]:
    if n:
        for piece in read():
            yield piece[:n]
            n -= len(piece)
            if n <= 0:
                return


def _say_lists(levels: bytes, n: int, width: int, begun: int) -> bool:
    """`_are_lists`, remembered unless that would take much memory."""
    check = _are_lists if len(levels) <= _SHORT_LEVELS else _are_lists.__wrapped__
    return check(levels, n, width, begun)


@functools.lru_cache(maxsize=64)
def _are_lists(levels: bytes, n: int, width: int, begun: int) -> bool:
    """Whether n levels say: lists of `width` numbers, the first of which began `begun` before.

    A level is 0 where a list begins, else 1. They come as runs: a length and a level, or groups of
    eight levels as bits. Where the runs begin to repeat, what repeats need not be read again.
    """
    data, seen = np.frombuffer(levels, np.uint8), {}
    at = done = compared = 0
    for _ in range(_MOST_RUNS):
        if done % width in seen:
            earlier, then = seen[done % width]
            step, new = at - earlier, done - then
            compared += len(data) - at
            if compared > 8 * len(data) + _SHORT_LEVELS:
                return False
            same = data[at:] == data[earlier : len(data) - step]
            times = (len(same) if same.all() else int(same.argmin())) // step
            times = min(times, (n - done) // new)
            at, done = at + times * step, done + times * new
        if done == n:
            return at == len(data)
        seen[done % width] = at, done
        try:
            length, at = _varint(levels, at)
        except IndexError:
            return False
        count, packed = length >> 1, length & 1
        end = at + (count if packed else 1)
        if not count or end > len(data) or not (packed or count <= n - done):
            return False
        if packed:
            found = np.unpackbits(data[at:end], bitorder="little")[: n - done]
        else:
            found = np.full(count, data[at])
        wanted = (np.arange(begun + done, begun + done + len(found)) % width).astype(bool)
        if not np.array_equal(found, wanted):
            return False
        at, done = end, done + len(found)
    return False


def _run(length: int, level: int) -> bytes:
    """One level so many times, as a run."""
    length, out = length << 1, bytearray()
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    return bytes([*out, length, level])


def _find_pages(path: str, column: Any) -> Iterator[_Page]:
    """The data pages of a column of a row group."""
    at = column.dictionary_page_offset
    at = column.data_page_offset if at is None else min(at, column.data_page_offset)
    end, first = at + column.total_compressed_size, 0
    if at < 0:
        raise UnusualError
    with Path(path).open("rb") as file:
        while at < end:
            file.seek(at)
            try:
                header, length = _fields(file.read(_HEADER_BYTES), 0)
            except (IndexError, RecursionError) as error:
                raise UnusualError from error
            kind, size, compressed = (header.get(i) for i in (1, 2, 3))
            if not (_is_size(size) and _is_size(compressed)):
                raise UnusualError
            if kind == _DATA_PAGE and isinstance(header.get(5), dict):
                numbers, encoding, *of_levels = (header[5].get(i) for i in (1, 2, 3, 4))
                if not _is_size(numbers) or of_levels != [_RUNS, _RUNS]:
                    raise UnusualError
                yield _Page(at + length, compressed, size, encoding, first, numbers)
                first += numbers
            elif kind != _DICTIONARY_PAGE:
                raise UnusualError
            at += length + compressed
    if at != end or not first:
        raise UnusualError


def _is_size(x: Any) -> bool:
    return x is not None and 0 <= x <= _LARGEST_PAGE


def _fields(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """The int32 and structures of one in Thrift's compact protocol, by number; and its end."""
    found: dict[int, Any] = {}
    number = 0
    while data[at]:
        step, kind = divmod(data[at], 16)
        number, at = number + step, at + 1
        if kind == 5:
            value, at = _varint(data, at)
            found[number] = value >> 1 ^ -(value & 1)
        elif kind in (4, 6):
            _, at = _varint(data, at)
        elif kind == 8:
            length, at = _varint(data, at)
            at += length
        elif kind == 12:
            found[number], at = _fields(data, at)
        elif kind not in (1, 2):
            raise UnusualError
        if not step:
            raise UnusualError
    return found, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at
