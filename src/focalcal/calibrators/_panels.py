"""Piecewise Chebyshev interpolation along a path of search points."""

from __future__ import annotations

import dataclasses

import numpy as np

from focalcal._arrays import Array, is_torch, namespace

NODES = 13
_CHUNK = 2**16  # interpolated values at a time on a CPU: they stay in cache
_DEVICE_CHUNK = 2**25


@dataclasses.dataclass(frozen=True)
class Panel:
    """Neighbouring points of a path, the nodes to evaluate, and the matrix from nodes to points.

    Where nodes would outnumber points, the points are the nodes, the matrix is the identity and
    there is no `check`: a position between two nodes where the interpolant can be tested.
    """

    members: np.ndarray
    nodes: np.ndarray
    matrix: np.ndarray
    check: float | None = None
    check_row: np.ndarray | None = None

    def halves(self, positions: np.ndarray) -> list[Panel]:
        half = len(self.members) // 2
        return [make_panel(positions, m) for m in (self.members[:half], self.members[half:])]


def make_panel(positions: np.ndarray, members: np.ndarray) -> Panel:
    """The panel of positions[members], which are in increasing order."""
    x = positions[members]
    if len(x) <= NODES or x[0] == x[-1]:
        return Panel(members, x, np.eye(len(x)))
    angles = (2 * np.arange(NODES) + 1) * np.pi / (2 * NODES)
    nodes = (x[0] + x[-1]) / 2 + (x[-1] - x[0]) / 2 * np.cos(angles)
    check = (nodes[NODES // 2] + nodes[NODES // 2 - 1]) / 2
    rows = barycentric(nodes, np.append(x, check))
    return Panel(members, nodes, rows[:-1], float(check), rows[-1])


def make_panels(positions: np.ndarray, length: float) -> list[Panel]:
    """Panels of at most `length` that cover all positions, from the largest down."""
    members = np.argsort(positions, kind="stable")
    below = positions[members[-1]] - positions[members]
    number = np.minimum(below // length, len(members)).astype(int)
    return [make_panel(positions, members[number == i]) for i in np.unique(number)]


def barycentric(nodes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The matrix from values at Chebyshev nodes to values of their interpolant at `x`."""
    n = len(nodes)
    weights = (-1.0) ** np.arange(n) * np.sin((2 * np.arange(n) + 1) * np.pi / (2 * n))
    difference = x[:, None] - nodes
    at_node = difference == 0
    terms = weights / np.where(at_node, 1.0, difference)
    matrix = terms / terms.sum(axis=1, keepdims=True)
    return np.where(at_node.any(axis=1, keepdims=True), at_node, matrix)


@dataclasses.dataclass(frozen=True)
class Stretch:
    """One γ along a panel: values (nodes, N) at its nodes, within epsilon·(1 + |value|)."""

    panel: Panel
    values: Array
    epsilon: float
    offset: int
    """Of this γ's first point among all γ's and positions."""


class Interpolated:
    """Values at all points of a path, numbered stretch by stretch, made when they are asked for.

    place: (P,) where each point lies among all γ's and positions; epsilon: (P,).
    """

    def __init__(self, stretches: list[Stretch]) -> None:
        sizes = [len(s.panel.members) for s in stretches]
        self._stretches = stretches
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        self.place = np.concatenate([s.offset + s.panel.members for s in stretches])
        self.epsilon = np.repeat([s.epsilon for s in stretches], sizes)
        values = stretches[0].values
        chunk = _DEVICE_CHUNK if is_torch(values) else _CHUNK
        self.rows = max(1, chunk // values.shape[1])
        """How many points to ask for at a time."""

    def odds(self, points: np.ndarray) -> Array:
        """Values (m, N) at m points in increasing order."""
        parts = []
        which = np.searchsorted(self._ends, points, side="right")
        for s in np.unique(which):
            stretch, own = self._stretches[s], points[which == s] - self._starts[s]
            parts.append(product(stretch.panel.matrix[own], stretch.values))
        return parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts, axis=0)


def product(matrix: np.ndarray, values: Array) -> Array:
    """matrix @ values on the device and in the precision of `values`."""
    if is_torch(values):
        import torch

        matrix = torch.as_tensor(matrix, dtype=values.dtype, device=values.device)
    else:
        matrix = matrix.astype(values.dtype)
    return matrix @ values
