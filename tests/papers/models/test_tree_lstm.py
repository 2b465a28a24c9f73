"""Tree-LSTM: level by level equals node by node."""

import importlib.util
from pathlib import Path

import pytest
import torch

from focalcal.errors import InputError
from focalcal_papers.data.trees import Trees, parse_tree
from focalcal_papers.models import class_logits, make_model, parameter_count

LINES = [
    "(1 (0 (0 (2 a) (3 (2 b) (3 c))) (2 d)) (1 (2 e) (2 f)))",
    "(4 a)",
    "(2 (2 a) (2 (2 b) (2 (2 c) (2 (2 d) (4 e)))))",
    "(3 (2 f) (4 e))",
]


@pytest.fixture
def trees() -> Trees:
    return Trees.build([parse_tree(x) for x in LINES], lambda w: ord(w) - 96, (0, 0, 1, 2, 2))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return make_model("tree_lstm", 2, vocabulary_size=8, dimension=6, memory=5).double()


def textbook_states(model, trees, index):
    """h and c of each node by Tai et al. Eq. 9–14, gate by gate with separate matrices.

    Independent of the batched path: no shared code but the parameters, which are cut apart.
    """
    m = model.composer.memory
    w_leaf, b_leaf = model.leaf.gates.weight, model.leaf.gates.bias
    blocks = model.composer.gates.weight.view(5, m, 2, m)
    biases = model.composer.gates.bias.view(5, m)
    h, c = [], []
    for at in range(trees.start[index], trees.start[index + 1]):
        left, right = trees.left[at], trees.right[at]
        if left < 0:
            x = model.embedding.weight[trees.word[at]]
            c.append(w_leaf[:m] @ x + b_leaf[:m])
            o = torch.sigmoid(w_leaf[m:] @ x + b_leaf[m:])
        else:
            pre = [w[:, 0] @ h[left] + w[:, 1] @ h[right] + b for w, b in zip(blocks, biases)]
            i, f_left, f_right, o = (torch.sigmoid(p) for p in pre[:4])
            c.append(i * torch.tanh(pre[4]) + f_left * c[left] + f_right * c[right])
        h.append(o * torch.tanh(c[-1]))
    return h


def test_levels_equal_the_textbook_recursion(model, trees):
    index = torch.tensor([2, 0, 3, 1])
    batch = trees.batch(index)
    logits = class_logits(model, batch)
    for row, i in zip(logits, index):
        want = model.linear(textbook_states(model, trees, int(i))[-1])
        # Outputs are negative, neutral, positive; the neutral one is dropped at the root.
        torch.testing.assert_close(row, want[[0, 2]], rtol=1e-12, atol=1e-12)


def test_all_nodes_and_gradients_equal_the_recursion(model, trees):
    batch = trees.batch(torch.arange(4))
    loss = torch.nn.functional.cross_entropy(model(batch), batch.targets)
    ours = torch.autograd.grad(loss, list(model.parameters()))
    hidden = torch.stack([h for i in range(4) for h in textbook_states(model, trees, i)])
    loss = torch.nn.functional.cross_entropy(model.linear(hidden), torch.from_numpy(trees.target))
    theirs = torch.autograd.grad(loss, list(model.parameters()))
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_the_benchmark_peer_computes_the_same(model, trees):
    path = Path(__file__).parents[3] / "benchmarks" / "tree_lstm.py"
    spec = importlib.util.spec_from_file_location("tree_lstm_benchmark", path)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    index = torch.tensor([0, 1, 2, 3])
    theirs = benchmark.node_by_node(model, trees, index)
    roots = trees.start[1:] - 1
    torch.testing.assert_close(
        theirs[roots][:, [0, 2]], class_logits(model, trees.batch(index)), rtol=1e-12, atol=1e-12
    )


def test_second_derivatives_exist(model, trees):
    batch = trees.batch(torch.arange(4))
    loss = torch.nn.functional.cross_entropy(model(batch), batch.targets)
    parameters = list(model.parameters())
    gradient = torch.autograd.grad(loss, parameters, create_graph=True)
    second = torch.autograd.grad(sum((g * g).sum() for g in gradient), parameters)
    assert all(torch.isfinite(s).all() for s in second)


def test_parameter_count():
    # Tai et al. Table 1: 316,800 for memory 150 and 300-d words. Their five gates carry one bias
    # for each child, whose sum is all that matters; here there is one: 5 · 150 fewer.
    model = make_model("tree_lstm", 2, vocabulary_size=10, dimension=300)
    composition = parameter_count(model.leaf) + parameter_count(model.composer)
    assert composition == 316_800 - 5 * 150
    assert parameter_count(model.linear) == 151 * 3


def test_word_vectors_are_fine_tuned_unless_frozen():
    vectors = torch.randn(7, 4)
    assert make_model("tree_lstm", 2, vectors=vectors).embedding.weight.requires_grad
    frozen = make_model("tree_lstm", 2, vectors=vectors, freeze=True)
    assert not frozen.embedding.weight.requires_grad
    assert torch.equal(frozen.embedding.weight, vectors)


def test_only_two_classes():
    with pytest.raises(InputError, match="expected 2 classes"):
        make_model("tree_lstm", 5, vocabulary_size=10)
