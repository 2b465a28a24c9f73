"""Trees: parsing, and batches by level against a walk from node to node."""

import doctest

import numpy as np
import pytest
import torch

import focalcal_papers.data.trees
from focalcal.errors import FileFormatError, InputError
from focalcal_papers.data.trees import Trees, parse_tree

LINES = [
    "(3 (2 It) (4 works))",
    "(1 (0 (0 (2 not) (3 (2 very) (3 good))) (2 ,)) (1 (2 at) (2 all)))",
    "(4 yes)",
    "(2 (2 a) (2 (2 b) (2 (2 c) (2 (2 d) (4 e)))))",
]
WORDS = ["It", "works", "not", "very", "good", ",", "at", "all", "yes", "a", "b", "c", "d", "e"]


@pytest.fixture
def trees() -> Trees:
    return Trees.build([parse_tree(line) for line in LINES], WORDS.index, (0, 0, 1, 2, 2))


def test_examples():
    assert doctest.testmod(focalcal_papers.data.trees).failed == 0


def test_parsing_keeps_words_labels_and_shape():
    tree = parse_tree(LINES[1])
    assert [w for w in tree.words if w] == ["not", "very", "good", ",", "at", "all"]
    assert tree.labels[-1] == 1
    assert sorted(tree.labels) == sorted(int(c) for c in LINES[1] if c.isdigit())
    # Children come before their parent, so one pass upwards suffices.
    assert all(max(left, right) < i for i, (left, right) in enumerate(zip(tree.left, tree.right)))


def test_a_word_may_hold_a_no_break_space():
    assert parse_tree("(2 (2 8\u00a01\\/2) (2 hours))").words[0] == "8\u00a01\\/2"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "brackets that pair"),
        ("(2 (2 a) (2 b)", "brackets that pair"),
        ("(2 a))", "brackets that pair"),
        ("word", "brackets that pair"),
        ("(2 (2 a))", "two children or one word"),
        ("(2 (2 a) (2 b) (2 c))", "two children or one word"),
        ("(2 a b)", "two children or one word"),
        ("(2 a (2 b))", "two children or one word"),
        ("(2)", "two children or one word"),
        ("(7 a)", r"label 0\.\.4"),
        ("(x a)", r"label 0\.\.4"),
        ("(2 a) (2 b)", r"label 0\.\.4"),
        ("(", r"label 0\.\.4"),
    ],
)
def test_malformed_trees(line, message):
    with pytest.raises(FileFormatError, match=message):
        parse_tree(line)


def test_batch_holds_every_node_once_and_finds_the_roots(trees):
    index = torch.tensor([3, 0, 2, 1])
    batch = trees.batch(index)
    assert len(batch) == 4
    assert len(batch.targets) == trees.start[-1]
    # An independent reading: map the labels of the bracket text by hand.
    by_hand = sorted(
        {"0": 0, "1": 0, "2": 1, "3": 2, "4": 2}[c] for c in "".join(LINES) if c.isdigit()
    )
    assert sorted(batch.targets.tolist()) == by_hand
    root_labels = [{0: 0, 1: 0, 2: 1, 3: 2, 4: 2}[int(LINES[i][1])] for i in index]
    assert batch.targets[batch.roots].tolist() == root_labels


def test_levels_spell_out_every_tree(trees):
    """Run the plan on strings: each root must spell its own bracket text without the labels."""
    index = [1, 2, 3, 0]
    batch = trees.batch(torch.tensor(index))
    waiting = [WORDS[w] for w in batch.words]
    every = list(waiting)
    for level in batch.levels:
        waiting = [waiting[i] for i in level.order]
        new = [f"[{waiting[2 * i]} {waiting[2 * i + 1]}]" for i in range(level.n)]
        waiting = new + waiting[2 * level.n :]
        every += new
    for root, i in zip(batch.roots, index):
        text = LINES[i].translate(str.maketrans("", "", "01234"))
        want = text.replace("( ", "(")
        while (shorter := _drop_brackets_of_words(want)) != want:
            want = shorter
        assert every[root] == want.replace("(", "[").replace(")", "]")


def test_random_trees_reach_their_roots():
    generator = np.random.default_rng(0)

    def grow(n: int) -> str:
        if n == 1:
            return f"({generator.integers(5)} {WORDS[generator.integers(len(WORDS))]})"
        k = int(generator.integers(1, n))
        return f"({generator.integers(5)} {grow(k)} {grow(n - k)})"

    lines = [grow(int(n)) for n in generator.integers(1, 40, size=20)]
    trees = Trees.build([parse_tree(line) for line in lines], WORDS.index, range(5))
    batch = trees.batch(torch.arange(20))
    # Count the words below each root through the plan; the text says how many there are.
    size = [1] * len(batch.words)
    every = list(size)
    for level in batch.levels:
        size = [size[i] for i in level.order]
        new = [size[2 * i] + size[2 * i + 1] for i in range(level.n)]
        size = new + size[2 * level.n :]
        every += new
    assert [every[r] for r in batch.roots] == [(line.count("(") + 1) // 2 for line in lines]


def test_empty_batch_is_an_error(trees):
    with pytest.raises(InputError, match="at least one tree"):
        trees.batch(torch.empty(0, dtype=torch.int64))


def test_to_sets_the_device_of_batches(trees):
    assert trees.to("meta").batch(torch.tensor([0])).words.device.type == "meta"


def _drop_brackets_of_words(text: str) -> str:
    for word in WORDS:
        text = text.replace(f"({word})", word)
    return text
