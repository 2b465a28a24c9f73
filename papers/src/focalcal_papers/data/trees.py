"""Binary trees of words: parsing, flat storage, and batches ordered by level.

The structure is in NumPy arrays on the host, where batches are planned; what the model needs of a
batch is moved to the device in one transfer.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from focalcal.errors import FileFormatError, InputError

# Only ASCII blanks separate: some words of the treebank hold a non-breaking space.
_TOKEN = re.compile(r"[()]|[^ \t\r\n()]+")


@dataclass(frozen=True)
class Tree:
    """One sentence: nodes in post-order (children before parents, the root last).

    `left`, `right` are node numbers, −1 for a word; `words` has one entry per node, "" for an
    inner one; `labels` one per node.
    """

    words: list[str]
    left: list[int]
    right: list[int]
    labels: list[int]


def parse_tree(line: str, n_labels: int = 5) -> Tree:
    """A tree in the bracket notation of the Penn Treebank files.

    >>> tree = parse_tree("(3 (2 It) (4 works))")
    >>> tree.words, tree.labels, tree.left
    (['It', 'works', ''], [2, 4, 3], [-1, -1, 0])
    """
    tree = Tree([], [], [], [])
    open_nodes: list[tuple[int, list[int], list[str]]] = []
    tokens = iter(_TOKEN.findall(line))
    for token in tokens:
        if token == "(":
            label = next(tokens, "")
            if not (label.isdigit() and int(label) < n_labels) or (tree.labels and not open_nodes):
                raise _malformed(line, f"a label 0..{n_labels - 1} after '('")
            open_nodes.append((int(label), [], []))
        elif not open_nodes:
            raise _malformed(line, "brackets that pair")
        elif token == ")":
            label, children, words = open_nodes.pop()
            if not ((len(children) == 2 and not words) or (len(words) == 1 and not children)):
                raise _malformed(line, "nodes of two children or one word")
            tree.words.append(words[0] if words else "")
            tree.left.append(children[0] if children else -1)
            tree.right.append(children[1] if children else -1)
            tree.labels.append(label)
            if open_nodes:
                open_nodes[-1][1].append(len(tree.labels) - 1)
        else:
            open_nodes[-1][2].append(token)
    if open_nodes or not tree.labels:
        raise _malformed(line, "brackets that pair")
    return tree


@dataclass(frozen=True)
class Level:
    """One step: reorder the waiting nodes so that `n` pairs of children come first."""

    order: Tensor
    n: int


@dataclass(frozen=True)
class TreeBatch:
    """Several trees, their nodes ordered by height (words first, then upwards).

    `words` (leaves,) word numbers; `levels` the steps upwards; `targets` (nodes,) labels;
    `roots` (B,) node numbers of the roots, in the order in which the trees were requested.
    """

    words: Tensor
    levels: tuple[Level, ...]
    targets: Tensor
    roots: Tensor

    def __len__(self) -> int:
        return len(self.roots)


@dataclass(frozen=True)
class Trees:
    """Many trees in flat arrays, node after node, tree after tree.

    `start` (T+1,) bounds the nodes of each tree; `left`, `right` count from its first node;
    `word` is a word number, −1 at inner nodes; `target` a label per node; `height` 0 at words.
    """

    start: np.ndarray
    left: np.ndarray
    right: np.ndarray
    word: np.ndarray
    target: np.ndarray
    height: np.ndarray
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def build(
        cls, trees: Sequence[Tree], encode: Callable[[str], int], targets: Sequence[int]
    ) -> Trees:
        """From parsed trees: `encode` numbers a word, `targets[label]` is the label to learn."""
        start = np.cumsum([0, *(len(tree.labels) for tree in trees)])
        left = np.array([i for tree in trees for i in tree.left], np.int64)
        right = np.array([i for tree in trees for i in tree.right], np.int64)
        word = np.array([encode(w) if w else -1 for tree in trees for w in tree.words], np.int64)
        target = np.asarray(targets)[[label for tree in trees for label in tree.labels]]
        return cls(start, left, right, word, target, _heights(trees))

    def __len__(self) -> int:
        return len(self.start) - 1

    def to(self, device: torch.device | str) -> Trees:
        """The same trees; their batches will be on `device`."""
        return dataclasses.replace(self, device=torch.device(device))

    def batch(self, index: Tensor) -> TreeBatch:
        """The trees `index` (B,), collated level by level."""
        chosen = np.asarray(index.cpu())
        if chosen.ndim != 1 or len(chosen) == 0:
            raise InputError(f"expected at least one tree number (B,), got shape {chosen.shape}")
        lengths = self.start[chosen + 1] - self.start[chosen]
        first = np.cumsum(lengths) - lengths
        n = int(lengths.sum())
        nodes = np.arange(n) + np.repeat(self.start[chosen] - first, lengths)
        # Stable, so that nodes of one height keep the order of their trees.
        by_height = np.argsort(self.height[nodes], kind="stable")
        rank = np.empty(n, np.int64)
        rank[by_height] = np.arange(n)
        ordered = nodes[by_height]
        shift = np.repeat(first, lengths)[by_height]
        bounds = np.cumsum(np.bincount(self.height[nodes]))
        n_words = int(bounds[0])
        inner = slice(n_words, n)
        children = np.stack([self.left[ordered[inner]], self.right[ordered[inner]]], axis=1)
        children = rank[children + shift[inner, None]]
        orders = _plan(children, bounds)
        packed = np.concatenate(
            [self.word[ordered[:n_words]], self.target[ordered], rank[first + lengths - 1], *orders]
        )
        sizes = [n_words, n, len(chosen), *(len(order) for order in orders)]
        words, targets, roots, *steps = torch.from_numpy(packed).to(self.device).split(sizes)
        pairs = np.diff(bounds)
        levels = tuple(Level(order, int(k)) for order, k in zip(steps, pairs))
        return TreeBatch(words, levels, targets, roots)


def _plan(children: np.ndarray, bounds: np.ndarray) -> list[np.ndarray]:
    """For each level, the order of the waiting nodes: children by pairs, then the others.

    After a level its new nodes come first and the others follow.
    """
    waiting = np.arange(bounds[0])
    place = np.empty(bounds[-1], np.int64)
    orders = []
    for low, high in itertools.pairwise(bounds):
        place[waiting] = np.arange(len(waiting))
        taken = place[children[low - bounds[0] : high - bounds[0]].ravel()]
        stays = np.ones(len(waiting), bool)
        stays[taken] = False
        others = np.flatnonzero(stays)
        orders.append(np.concatenate([taken, others]))
        waiting = np.concatenate([np.arange(low, high), waiting[others]])
    return orders


def _heights(trees: Sequence[Tree]) -> np.ndarray:
    heights: list[int] = []
    for tree in trees:
        own: list[int] = []
        for left, right in zip(tree.left, tree.right):
            own.append(0 if left < 0 else 1 + max(own[left], own[right]))
        heights += own
    return np.array(heights, np.int64)


def _malformed(line: str, expected: str) -> FileFormatError:
    return FileFormatError(
        f"expected {expected} in a bracketed tree, got {line[:60]!r}; fetch the file again"
    )
