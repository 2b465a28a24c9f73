"""Tree-LSTM on SST: one training epoch by levels against one node at a time.

usage: python benchmarks/tree_lstm.py SST_FOLDER [--vectors GLOVE] [--trees N] [--cpu-time]

Both use the same weights, batches, loss and optimizer (AdaGrad, batch 25, memory 150); the peer
is the textbook recursion. The peer is timed on the first `--trees` sentences and scaled to the
epoch by its number of nodes.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from focalcal_papers.data import load
from focalcal_papers.data.trees import Trees
from focalcal_papers.models import make_model
from focalcal_papers.models.tree_lstm import TreeLSTM

BATCH = 25


def node_by_node(model: TreeLSTM, trees: Trees, index: Tensor) -> Tensor:
    """Logits (nodes, outputs) of the trees in post-order, a module call per node.

    Words are looked up once for the whole batch: a dense gradient of the embedding for every
    single word would flatter the comparison.
    """
    nodes = np.concatenate([np.arange(trees.start[i], trees.start[i + 1]) for i in index])
    words = iter(model.embedding(torch.from_numpy(trees.word[nodes]).clamp(min=0)).split(1))
    logits: list[Tensor] = []
    for i in index:
        start, stop = trees.start[i], trees.start[i + 1]
        states: list[Tensor] = []
        for at in range(start, stop):
            word = next(words)
            if trees.left[at] < 0:
                state = model.leaf(word)
            else:
                children = [states[trees.left[at]], states[trees.right[at]]]
                state = model.composer(torch.stack(children, dim=1))
            states.append(state)
            logits.append(model.linear(state[:, : model.composer.memory]))
    return torch.cat(logits)


def epoch(model: TreeLSTM, trees: Trees, n_trees: int, *, levels: bool, cpu: bool = False) -> float:
    """Seconds to train on the first `n_trees` trees; with `cpu`, of processor time."""
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05, weight_decay=1e-4)
    clock = time.process_time if cpu else time.perf_counter
    began = clock()
    for first in range(0, n_trees, BATCH):
        index = torch.arange(first, min(first + BATCH, n_trees))
        if levels:
            batch = trees.batch(index)
            logits, targets = model(batch), batch.targets
        else:
            logits = node_by_node(model, trees, index)
            nodes = slice(int(trees.start[index[0]]), int(trees.start[index[-1] + 1]))
            targets = torch.from_numpy(trees.target[nodes])
        optimizer.zero_grad()
        F.cross_entropy(logits, targets).backward()
        optimizer.step()
    return clock() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--vectors")
    parser.add_argument("--trees", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="for a busy machine")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = load("sst", options.folder, vectors=options.vectors)
    trees = data.train.inputs
    settings = {"vocabulary_size": len(data.vocabulary)}
    if data.vectors is not None:
        settings = {"vectors": data.vectors}
    torch.manual_seed(0)
    ours, peer = (make_model("tree_lstm", 2, **settings) for _ in range(2))
    epoch(ours, trees, 4 * BATCH, levels=True)
    fast = epoch(ours, trees, len(trees), levels=True, cpu=options.cpu_time)
    slow = epoch(peer, trees, options.trees, levels=False, cpu=options.cpu_time)
    slow *= trees.start[-1] / trees.start[options.trees]
    print(f"by levels     {fast:8.1f} s per epoch ({len(trees)} trees, {trees.start[-1]} nodes)")
    print(f"node by node  {slow:8.1f} s per epoch (scaled from {options.trees} trees)")
    print(f"ratio         {slow / fast:8.1f}")


if __name__ == "__main__":
    main()
