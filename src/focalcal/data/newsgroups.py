"""20 Newsgroups, the "bydate" version with its official train and test folders."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from focalcal.data.files import check_folder, find_folder, missing_files
from focalcal.data.splits import DataSplits, three_way
from focalcal.data.text import Vocabulary, read_word_vectors, tokenize
from focalcal.errors import FileFormatError

MESSAGES = {"20news-bydate-train": 11314, "20news-bydate-test": 7532}
SOURCE = "http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz"


def load_newsgroups(
    folder: str | os.PathLike[str],
    *,
    seed: int = 0,
    calibration: int = 900,
    vocabulary_size: int = 20_000,
    length: int = 1000,
    vectors: str | os.PathLike[str] | None = None,
    complete: bool = True,
) -> DataSplits:
    """20 Newsgroups as word numbers (N, length) int64: 10,414 train, 900 calibration, 7,532 test.

    The official bydate folders hold 18,846 messages (IE used the older 19,997); the 900 are cut
    from the training folder by a seeded permutation. Whole messages, headers included, are read
    as latin-1 and tokenized; the vocabulary is the most frequent words of the training part.
    With `vectors` (a GloVe file) the word vectors come along as `.vectors`.
    """
    folder = check_folder(folder, "20 Newsgroups")
    place = find_folder(folder, ["20news", "20news-bydate"], list(MESSAGES))
    if place is None:
        absent = [name for name in MESSAGES if not (folder / name).exists()]
        raise missing_files("20 Newsgroups (bydate)", folder, absent, SOURCE)
    classes = sorted(p.name for p in (place / "20news-bydate-train").iterdir() if p.is_dir())
    (train_texts, train_labels), (test_texts, test_labels) = (
        _read(place / name, classes, count if complete else None)
        for name, count in MESSAGES.items()
    )
    # Cut first, on row numbers: the vocabulary may count only the words of the training part.
    rows = torch.arange(len(train_labels))
    parts = three_way(
        rows, train_labels, test_labels, test_labels, calibration=calibration, seed=seed
    )
    counted = (train_texts[i] for i in parts["train"].inputs.tolist())
    vocabulary = Vocabulary.most_frequent(counted, vocabulary_size)
    published = None if vectors is None else read_word_vectors(vectors, keep=vocabulary.words)
    n = len(train_labels)
    return DataSplits(
        "20newsgroups",
        **three_way(
            vocabulary.encode_padded(train_texts, length),
            train_labels,
            vocabulary.encode_padded(test_texts, length),
            test_labels,
            calibration=calibration,
            seed=seed,
        ),
        classes=tuple(classes),
        n_source=n + len(test_labels),
        vocabulary=vocabulary,
        vectors=None if published is None else published.rows_for(vocabulary, seed),
        note=f"bydate version; {calibration} of its {n} training messages calibrate (seed {seed})",
    )


def _read(
    folder: Path, classes: list[str], count: int | None
) -> tuple[list[list[str]], torch.Tensor]:
    texts, labels = [], []
    for label, name in enumerate(classes):
        group = folder / name
        if not group.is_dir():
            raise FileFormatError(f"expected a folder {name} in {folder}, found none")
        for path in sorted(group.iterdir()):
            texts.append(tokenize(path.read_text("latin-1")))
            labels.append(label)
    if count is not None and len(texts) != count:
        raise FileFormatError(
            f"expected {count} messages, got {len(texts)} in {folder}; "
            "unpack it again, or pass complete=False to use a shortened copy"
        )
    return texts, torch.tensor(labels, dtype=torch.int64)
