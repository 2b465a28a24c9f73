"""Formulas as MathML: the pages need neither a network nor a script to show them."""

from __future__ import annotations

from docutils import nodes
from latex2mathml.converter import convert


def _inline(self, node: nodes.math) -> None:
    self.body.append(convert(node.astext(), display="inline"))
    raise nodes.SkipNode


def _block(self, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math-block">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
