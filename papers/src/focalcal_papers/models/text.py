"""The global-pooling convolutional network for text (IE's network for 20 Newsgroups)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focalcal.errors import InputError


def word_embedding(
    vectors: Tensor | None, vocabulary_size: int | None, dimension: int, *, freeze: bool
) -> nn.Embedding:
    """Embedding from word vectors (V, D), or a new, learned one of `vocabulary_size` rows."""
    if vectors is not None:
        if vectors.ndim != 2:
            raise InputError(f"expected word vectors (words, D), got {tuple(vectors.shape)}")
        return nn.Embedding.from_pretrained(vectors.detach().clone().float(), freeze=freeze)
    if vocabulary_size is None:
        raise InputError(
            "expected word vectors or a vocabulary_size, got neither; "
            "pass vectors=data.vectors or vocabulary_size=len(data.vocabulary)"
        )
    return nn.Embedding(vocabulary_size, dimension)


class TextCNN(nn.Module):
    """Three convolutions of width 5 over word vectors, a maximum over the text, two linear layers.

    Input (B, L) int64 word numbers, L ≥ 149; output logits (B, n_classes). The word vectors stay
    fixed unless `freeze=False`; ReLU and a maximum over 5 follow the first two convolutions.
    """

    def __init__(
        self,
        n_classes: int,
        *,
        vectors: Tensor | None = None,
        vocabulary_size: int | None = None,
        dimension: int = 100,
        channels: int = 128,
        dropout: float = 0.3,
        freeze: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = word_embedding(vectors, vocabulary_size, dimension, freeze=freeze)
        self.conv1 = nn.Conv1d(self.embedding.embedding_dim, channels, 5)
        self.conv2 = nn.Conv1d(channels, channels, 5)
        self.conv3 = nn.Conv1d(channels, channels, 5)
        self.hidden = nn.Linear(channels, channels)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(channels, n_classes)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words).mT
        x = F.max_pool1d(F.relu(self.conv1(x)), 5)
        x = F.max_pool1d(F.relu(self.conv2(x)), 5)
        x = torch.amax(F.relu(self.conv3(x)), dim=2)
        return self.linear(self.dropout(F.relu(self.hidden(x))))
