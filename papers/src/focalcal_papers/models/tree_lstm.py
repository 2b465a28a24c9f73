"""The constituency Tree-LSTM (Tai et al. 2015), one step per level of the trees, not per node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from focalcal.errors import InputError
from focalcal_papers.models.text import word_embedding

if TYPE_CHECKING:
    from focalcal_papers.data.trees import TreeBatch

NEUTRAL = 1


class Leaf(nn.Module):
    """State of a word: c = W_c x, o = σ(W_o x), h = o tanh c. (n, D) → (n, 2m), h then c."""

    def __init__(self, dimension: int, memory: int) -> None:
        super().__init__()
        self.gates = nn.Linear(dimension, 2 * memory)

    def forward(self, words: Tensor) -> Tensor:
        c, o = self.gates(words).chunk(2, dim=1)
        return torch.cat([torch.sigmoid(o) * torch.tanh(c), c], dim=1)


class Composer(nn.Module):
    """State of an inner node from its left and right child: (n, 2, 2m) → (n, 2m).

    i, f_l, f_r, o = σ and u = tanh of a linear map of both h; c = i u + f_l c_l + f_r c_r,
    h = o tanh c (Tai et al. Eq. 9–14 with two children).
    """

    def __init__(self, memory: int) -> None:
        super().__init__()
        self.memory = memory
        self.gates = nn.Linear(2 * memory, 5 * memory)

    def forward(self, children: Tensor) -> Tensor:
        m = self.memory
        gates = self.gates(children[:, :, :m].flatten(1))
        i, left, right, o = torch.sigmoid(gates[:, : 4 * m]).chunk(4, dim=1)
        c = i * torch.tanh(gates[:, 4 * m :])
        c = c + left * children[:, 0, m:] + right * children[:, 1, m:]
        return torch.cat([o * torch.tanh(c), c], dim=1)


class TreeLSTM(nn.Module):
    """Sentiment of every node of every tree of a batch.

    `model(batch)` gives logits (nodes, outputs) in the order of `batch.targets`. With two classes
    there are three outputs (negative, neutral, positive); `class_logits` gives those at the roots,
    (B, n_classes), without the neutral one. Word vectors are fine-tuned unless `freeze`.
    """

    def __init__(
        self,
        n_classes: int,
        *,
        vectors: Tensor | None = None,
        vocabulary_size: int | None = None,
        dimension: int = 100,
        memory: int = 150,
        freeze: bool = False,
    ) -> None:
        super().__init__()
        if n_classes != 2:
            raise InputError(f"expected 2 classes (negative, positive), got {n_classes}")
        self.embedding = word_embedding(vectors, vocabulary_size, dimension, freeze=freeze)
        self.leaf = Leaf(self.embedding.embedding_dim, memory)
        self.composer = Composer(memory)
        self.linear = nn.Linear(memory, n_classes + 1)

    def forward(self, batch: TreeBatch) -> Tensor:
        return self.linear(self._hidden(batch))

    def class_logits(self, batch: TreeBatch) -> Tensor:
        logits = self.linear(self._hidden(batch)[batch.roots])
        kept = [k for k in range(logits.shape[1]) if k != NEUTRAL]
        return logits[:, kept]

    def _hidden(self, batch: TreeBatch) -> Tensor:
        """h of all nodes, level by level: (nodes, m).

        `state` holds the nodes still waiting for their parent, so the cost of a level depends only
        on these.
        """
        state = self.leaf(self.embedding(batch.words))
        done = [state]
        for level in batch.levels:
            state = state.index_select(0, level.order)
            children, waiting = state.split([2 * level.n, len(state) - 2 * level.n])
            parents = self.composer(children.view(level.n, 2, -1))
            state = torch.cat([parents, waiting])
            done.append(parents)
        return torch.cat([part[:, : self.composer.memory] for part in done])


def class_logits(model: nn.Module, inputs: object) -> Tensor:
    """Logits (B, n_classes) of a batch: the model's output, or for trees that at the roots."""
    return model.class_logits(inputs) if isinstance(model, TreeLSTM) else model(inputs)
