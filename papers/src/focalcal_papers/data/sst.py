"""The Stanford Sentiment Treebank (Socher et al. 2013) as the papers use it: two classes."""

from __future__ import annotations

from pathlib import Path

import torch

from focalcal.errors import FileFormatError
from focalcal_papers.data.files import PathLike, check_count, locate
from focalcal_papers.data.splits import DataSplits, Split
from focalcal_papers.data.text import Vocabulary, read_word_vectors
from focalcal_papers.data.trees import Tree, Trees, parse_tree

SENTENCES = {"train": 8544, "dev": 1101, "test": 2210}
SOURCE = "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip"
_NEUTRAL = 2
_THREE_WAY = (0, 0, 1, 2, 2)  # five shades to negative, neutral, positive
_ESCAPES = {"-lrb-": "(", "-rrb-": ")", "``": '"', "''": '"'}


def load_sst(
    folder: PathLike, *, seed: int = 0, vectors: PathLike | None = None, complete: bool = True
) -> DataSplits:
    """SST with negative and positive sentences: 6,920 train, 872 calibration, 1,821 test trees.

    Reads train.txt, dev.txt and test.txt in Penn Treebank brackets from `folder` or its sub-folder
    `trees`. Neutral sentences are dropped; neutral nodes inside the others are not. The official
    development set calibrates, so `seed` only fills the vectors of unknown words. With `vectors`
    (a GloVe file) words that only calibration and test use keep their published vector.
    """
    files = [f"{name}.txt" for name in SENTENCES]
    title = "the Stanford Sentiment Treebank"
    place = locate(folder, title, ["trees", "sst"], files, SOURCE)
    parsed = {
        name: _read(place / f"{name}.txt", count if complete else None)
        for name, count in SENTENCES.items()
    }
    words = {name: [_words(tree) for tree in trees] for name, trees in parsed.items()}
    vocabulary = Vocabulary.most_frequent(words["train"])
    rows = None
    if vectors is not None:
        every = {word for texts in words.values() for text in texts for word in text}
        published = read_word_vectors(vectors, keep=every)
        extra = sorted((every & set(published.words)) - set(vocabulary.words))
        vocabulary = Vocabulary((*vocabulary.words, *extra))
        rows = published.rows_for(vocabulary, seed)
    parts, first = {}, 0
    for part, name in zip(("train", "calibration", "test"), SENTENCES):
        parts[part] = _split(parsed[name], first, vocabulary)
        first += len(parsed[name])
    return DataSplits(
        "sst",
        **parts,
        classes=("negative", "positive"),
        n_source=first,
        vocabulary=vocabulary,
        vectors=rows,
        note="the official development set calibrates; neutral sentences are dropped",
    )


def _read(path: Path, count: int | None) -> list[Tree]:
    lines = path.read_text("utf-8").split("\n")
    trees = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            trees.append(parse_tree(line))
        except FileFormatError as error:
            raise FileFormatError(f"{error} (line {number} of {path})") from error
    check_count(len(trees), count, "trees", path, "fetch")
    return trees


def _split(trees: list[Tree], first: int, vocabulary: Vocabulary) -> Split:
    kept = [i for i, tree in enumerate(trees) if tree.labels[-1] != _NEUTRAL]
    chosen = [trees[i] for i in kept]
    labels = torch.tensor([int(tree.labels[-1] > _NEUTRAL) for tree in chosen])
    inputs = Trees.build(chosen, lambda word: vocabulary.number(_clean(word)), _THREE_WAY)
    return Split(inputs, labels.to(torch.int64), first + torch.tensor(kept, dtype=torch.int64))


def _words(tree: Tree) -> list[str]:
    return [_clean(word) for word in tree.words if word]


def _clean(word: str) -> str:
    """Lower case, with the treebank's escapes undone, as GloVe spells words."""
    word = word.lower().replace("\\", "")
    return _ESCAPES.get(word, word)
