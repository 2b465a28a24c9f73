"""The vision transformer (Dosovitskiy et al. 2021) for 32×32 images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focalcal.errors import InputError


class ViT(nn.Module):
    """Patches of 4×4 pixels, a class token, `depth` pre-norm encoder layers, one linear layer.

    The default has depth 6, width 384, 6 heads and a hidden layer of four times the width.
    """

    def __init__(
        self,
        n_classes: int,
        *,
        patch: int = 4,
        depth: int = 6,
        width: int = 384,
        heads: int = 6,
        mlp_ratio: int = 4,
        dropout: float = 0.0,
        input_shape: Sequence[int] = (3, 32, 32),
    ) -> None:
        super().__init__()
        channels, height, breadth = input_shape
        if height % patch or breadth % patch:
            raise InputError(
                f"expected an image size divisible by the patch {patch}, got {height}×{breadth}"
            )
        if width % heads:
            raise InputError(f"expected a width divisible by {heads} heads, got {width}")
        tokens = (height // patch) * (breadth // patch) + 1
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, tokens, width))
        self.layers = nn.Sequential(
            *(_EncoderLayer(width, heads, mlp_ratio, dropout) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1)
        out = self.layers(tokens + self.position)
        return self.linear(self.norm(out[:, 0]))


class _EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int, mlp_ratio: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, mlp_ratio * width)
        self.down = nn.Linear(mlp_ratio * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._drop(self._attend(self.norm1(x)))
        return x + self._drop(self.down(F.gelu(self.up(self.norm2(x)))))

    def _attend(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv(x).view(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        # Written out because the fused kernels have no second derivative, which curvature needs.
        weights = torch.softmax(q @ k.mT * (width // self.heads) ** -0.5, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, tokens, width))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)
