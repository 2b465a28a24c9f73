"""20 Newsgroups, the "bydate" version: its official folders, or a random split as IE made it."""

from __future__ import annotations

from pathlib import Path

import torch

from focalcal.errors import FileFormatError, InputError
from focalcal_papers.data.files import PathLike, check_count, locate
from focalcal_papers.data.splits import DataSplits, Split, cut
from focalcal_papers.data.text import Vocabulary, read_word_vectors, tokenize

MESSAGES = {"20news-bydate-train": 11314, "20news-bydate-test": 7532}
SOURCE = "http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz"


def load_newsgroups(
    folder: PathLike,
    *,
    seed: int = 0,
    split: str = "bydate",
    headers: bool = True,
    calibration: int = 900,
    vocabulary_size: int = 20_000,
    length: int = 1000,
    vectors: PathLike | None = None,
    complete: bool = True,
) -> DataSplits:
    """20 Newsgroups as word numbers (N, length) int64, from the 18,846 messages of "bydate".

    `split="bydate"`: the official folders, 900 calibration messages cut from the training folder
    by a seeded permutation (10,414 / 900 / 7,532). All test messages are later than the others.
    `split="random"`: test (a fifth) and calibration cut at random from all messages, as IE cut the
    older corpus of 19,997 (14,177 / 900 / 3,769). IE also drops the headers: `headers=False`.

    Messages are read as latin-1 and tokenized; the vocabulary is the most frequent words of the
    training part. With `vectors` (a GloVe file) the word vectors come along as `.vectors`.
    """
    if split not in ("bydate", "random"):
        raise InputError(f"expected split 'bydate' or 'random', got {split!r}")
    subfolders = ["20news", "20news-bydate"]
    place = locate(folder, "20 Newsgroups (bydate)", subfolders, list(MESSAGES), SOURCE)
    classes = sorted(p.name for p in (place / "20news-bydate-train").iterdir() if p.is_dir())
    (train_texts, train_labels), (test_texts, test_labels) = (
        _read(place / name, classes, count if complete else None, headers)
        for name, count in MESSAGES.items()
    )
    texts, labels = train_texts + test_texts, torch.cat((train_labels, test_labels))
    n, official = len(labels), len(train_labels)
    if split == "bydate":
        train, calibrating = cut(official, calibration, seed)
        test = torch.arange(official, n)
        pool = f"its {official} training"
    else:
        rest, test = cut(n, n // 5, seed)
        train, calibrating = (rest[i] for i in cut(len(rest), calibration, seed))
        pool = f"all {n}"
    # Only training messages may define the vocabulary.
    vocabulary = Vocabulary.most_frequent((texts[i] for i in train.tolist()), vocabulary_size)
    published = None if vectors is None else read_word_vectors(vectors, keep=vocabulary.words)
    encoded = vocabulary.encode_padded(texts, length)
    parts = {"train": train, "calibration": calibrating, "test": test}
    return DataSplits(
        "20newsgroups",
        **{name: Split(encoded[i], labels[i], i) for name, i in parts.items()},
        classes=tuple(classes),
        n_source=n,
        vocabulary=vocabulary,
        vectors=None if published is None else published.rows_for(vocabulary, seed),
        note=f"bydate version, {split} split; {calibration} of {pool} messages calibrate "
        f"(seed {seed})" + ("" if headers else "; headers dropped"),
    )


def _read(
    folder: Path, classes: list[str], count: int | None, headers: bool
) -> tuple[list[list[str]], torch.Tensor]:
    texts, labels = [], []
    for label, name in enumerate(classes):
        group = folder / name
        if not group.is_dir():
            raise FileFormatError(f"expected a folder {name} in {folder}, found none")
        for path in sorted(group.iterdir()):
            text = path.read_text("latin-1")
            texts.append(tokenize(text if headers else text.partition("\n\n")[2] or text))
            labels.append(label)
    check_count(len(texts), count, "messages", folder, "unpack")
    return texts, torch.tensor(labels, dtype=torch.int64)
