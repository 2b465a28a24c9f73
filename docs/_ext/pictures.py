"""The pictures of the pages, drawn as the site is built: a light and a dark one of each.

A page asks for one with `<!-- picture NAME: what it shows -->`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from style import settings

from focalcal import calibrators, maps, metrics
from focalcal.bins import Bins
from focalcal.examples import resnet18
from focalcal.metrics.proportion import share_interval

PICTURES: dict[str, Callable[[], Any]] = {}
ROOT = Path(__file__).resolve().parents[2]


def picture(draw: Callable[[], Any]) -> Callable[[], Any]:
    """Register a function that draws one figure."""
    PICTURES[draw.__name__.replace("_", "-")] = draw
    return draw


def write_pictures(folder: Path) -> None:
    """Draw every picture in both themes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        for theme in ("light", "dark"):
            with mpl.rc_context(settings(theme)):
                figure = draw()
                figure.savefig(folder / f"{name}-{theme}.svg", metadata={"Date": None})
                plt.close(figure)


def with_pictures(page: str, folder: str) -> str:
    """The page with both pictures in the place of each comment; the theme shows one of them."""

    def images(found: re.Match[str]) -> str:
        name, words = found[1], " ".join(found[2].split())
        return "\n".join(
            f":::{{image}} {folder}/{name}-{theme}.svg\n:class: only-{theme}\n:alt: {words}\n:::\n"
            for theme in ("light", "dark")
        )

    return re.sub(r"<!-- picture ([\w-]+): (.*?) -->", images, page, flags=re.DOTALL)


def _axes(*shape: int, size: tuple[float, float] = (7.5, 3.2)) -> tuple[Any, Any]:
    return plt.subplots(*(shape or (1, 1)), figsize=size, layout="constrained")


def _reliability(ax: Any, b: Bins, title: str, colour: str) -> None:
    some = b.counts > 0
    low, high = share_interval(b.correct_sums, b.counts)
    ax.plot([0, 1], [0, 1], ":", color="0.5", linewidth=1.2)
    ax.fill_between(
        b.mean_confidence[some], low[some], high[some], color=colour, alpha=0.2, linewidth=0
    )
    ax.plot(b.mean_confidence[some], b.accuracy[some], "o-", color=colour, markersize=5)
    ax.set(title=title, xlabel="confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.02))


def _calibrated(rng: np.random.Generator, n: int, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Labels and probabilities of a model that is calibrated by construction."""
    z = 1.5 * rng.normal(size=(n, k))
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return np.argmax(z + rng.gumbel(size=z.shape), axis=1), p


@functools.cache
def _fitted(method: str, n: int) -> calibrators.Calibrator:
    """Fitted to n validation samples of the ResNet-18; larger sets contain the smaller ones."""
    val, _ = resnet18()
    rows = np.random.default_rng(0).permutation(val.n)[:n]
    return calibrators.make(method).fit(val.logits[rows], val.labels[rows])


@picture
def home() -> Any:
    _, test = resnet18()
    after = _fitted("focal-structured", 5000).predict_proba(test.logits)
    figure, axes = _axes(1, 2, size=(8, 3.9))
    for ax, word, colour, probs in zip(
        axes,
        ("Before", "After"),
        ("C1", "C0"),
        (test.probabilities(), after),
    ):
        error = metrics.ece(test.labels, probs)
        _reliability(
            ax, metrics.reliability(test.labels, probs), f"{word}: ECE {100 * error:.1f} %", colour
        )
    return figure


@picture
def ece_noise() -> Any:
    rng = np.random.default_rng(0)
    sizes = (100, 300, 1000, 3000, 10_000, 30_000)
    named = {
        "ECE, 15 bins": metrics.ece,
        "equal-mass bins": metrics.adaptive_ece,
        "debiased": metrics.debiased_ece,
    }
    figure, ax = _axes()
    for name, metric in named.items():
        found = [100 * np.mean([metric(*_calibrated(rng, n)) for _ in range(10)]) for n in sizes]
        ax.loglog(sizes, found, "o-", label=name)
    ax.set(xlabel="samples", ylabel="mean error of a calibrated model, %")
    ax.legend()
    return figure


@picture
def ece_useless() -> Any:
    _, test = resnet18()
    shares = np.bincount(test.labels) / len(test.labels)
    models = {
        "class frequencies": np.tile(shares, (len(test.labels), 1)),
        "network": test.probabilities(),
    }
    figure, axes = _axes(1, 2, size=(7.5, 2))
    for ax, title, metric, scale in zip(
        axes, ("ECE, %", "log-loss"), (metrics.ece, metrics.nll), (100, 1)
    ):
        values = [scale * metric(test.labels, probs) for probs in models.values()]
        bars = ax.barh(list(models), values, color=["C1", "C0"], height=0.55)
        ax.bar_label(bars, fmt="%.2f", padding=4)
        ax.set(title=f"{title} (lower is better)", xlim=(0, 1.25 * max(values)))
        ax.grid(axis="y", visible=False)
    axes[1].set_yticklabels([])
    return figure


@picture
def ece_bins() -> Any:
    rng = np.random.default_rng(0)
    y, p = _calibrated(rng, 2000)
    sharp = p**2 / (p**2).sum(axis=1, keepdims=True)
    bins = range(2, 61)
    figure, ax = _axes(size=(7.5, 2.8))
    for name, probs, colour in (
        ("over-confident model", sharp, "C1"),
        ("calibrated model", p, "C0"),
    ):
        values = [100 * metrics.ece(y, probs, bins=m) for m in bins]
        ax.plot(bins, values, label=name, color=colour)
    ax.set(xlabel="number of bins", ylabel="ECE, %", ylim=(0, None))
    ax.legend()
    return figure


@picture
def loss_shapes() -> Any:
    p = np.linspace(0.005, 1, 300)
    figure, (left, right) = _axes(1, 2, size=(8, 3.3))
    truth = np.linspace(0.001, 0.999, 200)
    for gamma in (0, 1, 3, 5):
        left.plot(p, -((1 - p) ** gamma) * np.log(p), label=f"γ = {gamma}")
        says = maps.inverse_focal_map(np.stack([1 - truth, truth], axis=1), gamma)[:, 1]
        right.plot(truth, says)
    left.set(title="The loss", xlabel="probability of the true class", ylim=(0, 3))
    left.legend(title="0 is cross-entropy")
    right.set(title="What its minimiser says", xlabel="true probability", ylabel="predicted")
    return figure


@picture
def calibrator_samples() -> Any:
    _, test = resnet18()
    sizes = (50, 150, 500, 1500, 5000)
    figure, ax = _axes()
    before = metrics.nll(test.labels, logits=test.logits)
    for name in ("temperature", "structured-vector", "isotonic", "focal-structured"):
        probs = [_fitted(name, n).predict_proba(test.logits) for n in sizes]
        ax.semilogx(sizes, [metrics.nll(test.labels, p) for p in probs], "o-", label=name)
    ax.axhline(before, color="0.5", linestyle=":", label="uncalibrated")
    ax.set(xlabel="calibration samples", ylabel="log-loss on the test set")
    ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
    ax.set_xticks([], minor=True)
    ax.set_ylim(0.15, 1.3 * before)
    ax.legend(ncols=2)
    return figure


@picture
def arena() -> Any:
    """Mean log-loss over the pairs of the arena, and how often a method is worse than nothing."""
    record = json.loads((ROOT / "results" / "benchmarks" / "arena.json").read_text())
    found = [row["scores"] for row in record["results"]]
    shared = set.intersection(*(set(scores) for scores in found)) - {"identity"}
    loss = {m: np.array([scores[m][0] for scores in found]) for m in (*shared, "identity")}
    order = sorted(shared & set(calibrators.METHODS), key=lambda m: -loss[m].mean())[-10:]
    figure, (left, right) = _axes(1, 2, size=(8, 0.9 + 0.32 * len(order)))
    colours = ["C1" if m in ("auto", "focal-structured") else "C0" for m in order]
    for ax, values, form in (
        (left, [loss[m].mean() for m in order], "%.3f"),
        (right, [100 * np.mean(loss[m] > loss["identity"] + 1e-9) for m in order], "%.0f %%"),
    ):
        bars = ax.barh(order, values, color=colours, height=0.65)
        ax.bar_label(bars, fmt=form, padding=4)
        ax.set_xlim(0, 1.25 * max(values))
        ax.grid(axis="y", visible=False)
    left.set_title(f"Mean log-loss, {len(found)} classifiers")
    right.set_title("Worse than no calibration")
    right.set_yticklabels([])
    return figure


@picture
def interval_coverage() -> Any:
    """Intervals of the ECE of thirty samples from one model whose true ECE is known."""
    rng = np.random.default_rng(3)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y, p = _calibrated(rng, n)
        sharp = p**1.5
        return y, sharp / sharp.sum(axis=1, keepdims=True)

    truth = 100 * metrics.ece(*draw(400_000))
    figure, ax = _axes(size=(7.5, 2.8))
    for i in range(30):
        e = metrics.evaluate(*draw(500), resamples=100)["ece"]
        hit = e.low <= truth / 100 <= e.high
        colour = "C0" if hit else "C4"
        ax.plot([i, i], [100 * e.low, 100 * e.high], color=colour)
        ax.plot(i, 100 * e.value, "o", color=colour, markersize=5)
    ax.axhline(truth, color="C1", label=f"true ECE {truth:.1f} %")
    ax.set(xlabel="sample of 500", ylabel="ECE, %", ylim=(0, None), xticks=[])
    ax.legend(loc="lower right")
    return figure


@picture
def weekly_tests() -> Any:
    """The share of years with a false alarm, by week: a 5 % test each week, and the monitor."""
    weeks = np.arange(1, 53)
    figure, (left, right) = _axes(1, 2, size=(8, 3.3))
    left.plot(weeks, 100 * (1 - 0.95**weeks), color="C1", label="a 5 % test every week")
    left.axhline(5, color="C0", label="monitor, at most")
    left.set(title="False alarms", xlabel="week", ylabel="years with an alarm, %", ylim=(0, 100))
    left.legend()
    monitor = _monitored(np.random.default_rng(7))
    evidence = [-np.log10(r.p_values["calibrated"]) for r in monitor.results]
    right.plot(weeks[: len(evidence)], evidence, "o-", color="C0", markersize=3)
    right.axhline(-np.log10(monitor.threshold), color="C4", linestyle=":", label="alarm")
    right.axvline(20, color="0.5", linewidth=1)
    right.annotate("the world changes", (20, 0.9 * max(evidence)), xytext=(-6, 0), ha="right",
                   textcoords="offset points")  # fmt: skip
    right.set(title="Evidence", xlabel="week", ylabel="−log₁₀ p")
    right.legend(loc="center left")
    return figure


def _monitored(rng: np.random.Generator) -> metrics.Monitor:
    def batch(n: int, slope: float) -> tuple[np.ndarray, np.ndarray]:
        z = 2 * rng.normal(size=(n, 4))
        y = np.argmax(slope * z + rng.gumbel(size=z.shape), axis=1)
        return y, np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)

    monitor = metrics.Monitor(*batch(4000, 1.0))
    for week in range(1, 27):
        y, p = batch(300, 1.0 if week < 20 else 0.8)
        monitor.update(str(week), p, y)
    return monitor
