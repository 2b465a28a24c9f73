"""Piecewise Chebyshev interpolation along a path of search points."""

from __future__ import annotations

import dataclasses

import numpy as np

NODES = 13


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
