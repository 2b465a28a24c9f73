"""The page of `focalcal theory`: figures, numbers and errata, computed as it is written."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from markupsafe import Markup

from focalcal.files import check_suffix, write_text
from focalcal.metrics.declare import decimal
from focalcal.provenance import provenance
from focalcal.report import page
from focalcal_papers import errata, theory
from focalcal_papers.theory_page import figures

_LEAD = (
    "The map Ψ links focal loss, temperature scaling and properness. This page draws it, bounds "
    "it, and checks what the papers print."
)


def write(path: str | Path, progress: Callable[[float], None] | None = None) -> Path:
    """Write the page atomically."""
    path = check_suffix(path, (".html", ".htm"))
    write_text(path, render(progress))
    return path


def render(progress: Callable[[float], None] | None = None) -> str:
    """The whole page as text; `progress` is called with the fraction done."""
    started = time.perf_counter()
    report = progress or (lambda _: None)
    found = errata.errata()
    report(0.5)
    drawn = [[make() for make in makers] for *_, makers in _SECTIONS]
    report(0.95)
    body = [
        _section(id, title, words, [page.piece("figure", f, "γ") for f in shown])
        for (id, title, words, _), shown in zip(_SECTIONS, drawn)
    ]
    body += [_curvature_path(), _errata(found)]
    links = [(id, title) for id, title, *_ in _SECTIONS]
    links += [("path", "Bounds and curvature"), ("errata", "Errata")]
    record = provenance()
    seconds = time.perf_counter() - started
    foot = (
        f"Written by focalcal {record['focalcal']} on {record['date']}; "
        f"all numbers computed in {seconds:.1f} s."
    )
    return page.frame(
        title="The theory in figures and numbers",
        lead=_LEAD,
        links=links,
        body="".join(body),
        figures=[f for shown in drawn for f in shown],
        foot=foot,
    )


_SECTIONS = (
    (
        "map",
        "The map",
        "Ψ^γ(q)_i ∝ q_i/g(q_i,γ) with g(q,γ) = (1−q)^γ·(1 + γ·r(q)) and r(q) = −q·ln q/(1−q). A "
        "network that minimises focal loss predicts q*(p); Ψ^γ recovers p.",
        (figures.focal_map_figure, figures.minimiser_figure),
    ),
    (
        "temperature",
        "Against temperature scaling",
        "For two classes σ(s(γ+1−ln(γ+1)/2)) ≤ Ψ ≤ σ(s(γ+1)) at every logit s > 0, so Ψ lies "
        "between two temperatures; the closest one is found by minimising the largest difference.",
        (figures.closest_figure, figures.difference_figure),
    ),
    (
        "simplex",
        "On the simplex",
        "Three classes: the triangle holds every probability vector.",
        (figures.simplex_figure, figures.isolines_figure),
    ),
    (
        "loss",
        "Gradient and curvature",
        "The logit gradient of focal loss is g(p,γ)·(softmax(z) − onehot(y)); its curvature is "
        "that factor on cross-entropy's Hessian plus a rank-one term.",
        (figures.gradient_figure, figures.curvature_figure),
    ),
    (
        "classes",
        "Many classes",
        "Ψ does not lower the top probability iff Σ_k q_k/g(q_k) ≤ 1/g(q_top).",
        (figures.lowered_figure,),
    ),
)


def _curvature_path() -> str:
    """The path from focal loss to curvature, on the two-parameter model."""
    problem = theory.two_parameter_problem()
    grid = theory.parameter_grid()
    rows = []
    for gamma in (0.0, 1.0, 3.0):
        losses = problem.losses(grid, gamma)
        best = grid[int(np.argmin(losses))]
        at = theory.maxwell_boltzmann(losses, float(losses.min() * 1.05))
        numbers = f"{losses.min():.4f}", f"{np.linalg.norm(best):.2f}"
        rows.append((f"γ = {gamma:g}", *numbers, f"{at.beta:.1f}", f"{at.entropy:.3f}"))
    bound = theory.best_pac_bayes_bound(problem.errors(grid), len(problem.labels))
    best = grid[int(np.argmin(problem.losses(grid, 0.0)))]
    step = theory.kl_and_fisher(problem.inputs, best, 0.1 * best)
    words = (
        "Two-parameter logistic regression on four clusters with one label in ten flipped. The "
        f"PAC-Bayes bound on its error with the best λ = {bound.trade_off:.3f} is "
        f"{bound.bound:.4f} (sample error of the posterior {bound.empirical_risk:.4f}, KL "
        f"{bound.kl:.2f}). A step of a tenth from the best parameters has KL {step.exact:.3e}; "
        f"½ΔᵀFΔ gives {step.quadratic:.3e}."
    )
    table = page.piece(
        "table",
        "The Maxwell–Boltzmann distribution at 1.05 times the least loss",
        ("loss", "least loss", "norm of the minimiser", "β", "entropy"),
        rows,
    )
    return _section("path", "Bounds and curvature", words, [table])


def _errata(found: tuple[errata.Erratum, ...]) -> str:
    items = [
        page.piece("erratum", e, [(name, _number(value)) for name, value in e.evidence.items()])
        for e in found
    ]
    words = "What the papers print and what holds; the numbers are computed by the library."
    return _section("errata", "Errata", words, items)


def _section(id: str, title: str, words: str, pieces: list[Markup]) -> Markup:
    """A paragraph above pieces, which are side by side if there is room."""
    content = page.piece("paragraph", words) + page.piece("pair", pieces)
    return page.piece("section", id, title, content)


def _number(x: float) -> str:
    return f"{x:d}" if isinstance(x, int) else decimal(round(x, 12))
