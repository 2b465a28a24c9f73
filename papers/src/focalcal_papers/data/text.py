"""Words to numbers: a tokenizer, a vocabulary, published word vectors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from focalcal.errors import FileFormatError, InputError
from focalcal.formats import read_table
from focalcal_papers.data.files import PathLike

_WORD = re.compile(r"[^\W_]+")
PADDING, UNKNOWN = 0, 1


def tokenize(text: str) -> list[str]:
    """Runs of letters and digits, in lower case; everything else separates.

    >>> tokenize("It's e-mail, RE: v2.0")
    ['it', 's', 'e', 'mail', 're', 'v2', '0']
    """
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """Numbered words: 0 is padding, 1 is any unknown word, the others follow from 2 on.

    >>> vocabulary = Vocabulary.most_frequent([["b", "a"], ["a", "c"]], size=2)
    >>> vocabulary.words, vocabulary.encode(["a", "c", "b"])
    (('a', 'b'), [2, 1, 3])
    """

    words: tuple[str, ...]

    @classmethod
    def most_frequent(cls, texts: Iterable[Sequence[str]], size: int | None = None) -> Vocabulary:
        """The `size` most frequent words of tokenized texts; ties are in alphabetical order."""
        counts = Counter(word for words in texts for word in words)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(tuple(ranked[:size]))

    def __len__(self) -> int:
        return len(self.words) + 2

    def number(self, word: str) -> int:
        return self._numbers.get(word, UNKNOWN)

    def encode(self, words: Iterable[str]) -> list[int]:
        return [self._numbers.get(word, UNKNOWN) for word in words]

    def encode_padded(self, texts: Sequence[Sequence[str]], length: int) -> Tensor:
        """(N, length) int64: the first `length` words of each text, zeros behind shorter ones."""
        table = np.full((len(texts), length), PADDING, np.int64)
        for row, words in zip(table, texts):
            numbers = self.encode(words[:length])
            row[: len(numbers)] = numbers
        return torch.from_numpy(table)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: i + 2 for i, word in enumerate(self.words)}


@dataclass(frozen=True)
class WordVectors:
    """Published vectors: `vectors` (W, D) float32, one row per word."""

    words: tuple[str, ...]
    vectors: np.ndarray

    def rows_for(self, vocabulary: Vocabulary, seed: int = 0) -> Tensor:
        """(V, D) float32 rows for a vocabulary: zeros for padding, uniform ±.05 where unknown."""
        generator = torch.Generator().manual_seed(seed)
        rows = torch.rand(len(vocabulary), self.vectors.shape[1], generator=generator) / 10 - 0.05
        rows[PADDING] = 0
        own = {word: i for i, word in enumerate(self.words)}
        known = [(i, own[w]) for i, w in enumerate(vocabulary.words, start=2) if w in own]
        if known:
            at, source = np.array(known).T
            rows[torch.from_numpy(at)] = torch.from_numpy(self.vectors[source])
        return rows


def read_word_vectors(path: PathLike, *, keep: Iterable[str] | None = None) -> WordVectors:
    """GloVe vectors: the official text file, or an npz with `vectors` and words.txt beside it.

    `keep` limits a text file to the words named, which saves memory: the full file has 400,000.
    """
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(
            f"expected word vectors at {path}, found none; download glove.6B.zip from "
            "https://nlp.stanford.edu/projects/glove/ and unpack it there"
        )
    return _read_npz(path) if path.suffix == ".npz" else _read_text(path, keep)


def _read_npz(path: Path) -> WordVectors:
    names = path.with_name("words.txt")
    if not names.is_file():
        raise FileFormatError(f"expected the words of {path} in {names}, one a line; put it there")
    vectors = read_table(path)[0].get("vectors", np.empty(0))
    words = tuple(names.read_text("utf-8").splitlines())
    if vectors.ndim != 2 or len(vectors) != len(words) or vectors.dtype.kind != "f":
        raise FileFormatError(
            f"expected an array 'vectors' with {len(words)} rows of real numbers for the words of "
            f"{names}, got {vectors.dtype} {vectors.shape} in {path}"
        )
    return WordVectors(words, vectors.astype(np.float32))


def _read_text(path: Path, keep: Iterable[str] | None) -> WordVectors:
    wanted = None if keep is None else set(keep)
    words: list[str] = []
    rows: list[np.ndarray] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            word, _, numbers = line.rstrip("\n").partition(" ")
            if wanted is not None and word not in wanted:
                continue
            try:
                row = np.array(numbers.split(" "), dtype=np.float32)
            except ValueError:
                row = np.empty(0, np.float32)
            if len(row) == 0 or (rows and len(row) != len(rows[0])):
                width = f"{len(rows[0])} numbers" if rows else "numbers"
                raise FileFormatError(
                    f"expected a word and {width}, got {line[:40]!r} at line {number} of {path}"
                )
            words.append(word)
            rows.append(row)
    if not rows:
        raise InputError(f"expected at least one wanted word in {path}, found none")
    return WordVectors(tuple(words), np.stack(rows))
