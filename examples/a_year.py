"""Run docs/a-year.md and draw its pictures.

    python examples/a_year.py [FOLDER FOR THE PICTURES]

The page holds the data and the commands; this script runs them in a temporary folder, as the tests
do, and draws docs/images/year-*.png from the files that they write.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from typer.testing import CliRunner

from focalcal.calibrators import load
from focalcal.cli import app
from focalcal.metrics import Monitor, evaluate_by, risk_coverage
from focalcal.metrics.monitoring import TESTS
from focalcal.predictions import Predictions

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "a-year.md"


def run_page() -> dict[str, str]:
    """Run every block of the page here; what each command printed, by the command."""
    names: dict[str, object] = {}
    printed = {}
    for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.S | re.M):
        if kind == "python":
            exec(compile(text, PAGE.name, "exec"), names)
            continue
        for command in re.findall(r"^\$ focalcal (.*)$", text, re.M):
            result = CliRunner().invoke(app, shlex.split(command, comments=True))
            expected = 3 if "# exit code 3" in command else 0
            if result.exit_code != expected:
                raise RuntimeError(f"focalcal {command}: {result.output}{result.exception!r}")
            printed[command] = result.stdout
    return printed


def draw_slices(ax: plt.Axes) -> None:
    found = evaluate_by(Predictions.load("calibrated.npz"), by="country", resamples=200)
    slices = sorted(found.slices, key=lambda s: s.ece - s.expected_ece)
    y = np.arange(len(slices))
    estimates = [s.metrics["ece"] for s in slices]
    value = 100 * np.array([e.value for e in estimates])
    away = [value - [100 * e.low for e in estimates], [100 * e.high for e in estimates] - value]
    colours = ["C3" if s.p_value <= 0.05 else "C0" for s in slices]
    ax.errorbar(value, y, xerr=away, fmt="none", ecolor="0.6", capsize=3)
    ax.scatter(value, y, c=colours, zorder=3, label="found")
    chance = [100 * s.expected_ece for s in slices]
    ax.scatter(chance, y, marker="|", s=200, c="k", label="chance alone")
    ax.set(yticks=y, yticklabels=[f"{s.name} ({s.n:,})" for s in slices], xlabel="ECE, %")
    ax.set_xlim(0)
    ax.legend(loc="lower right")


def draw_threshold(ax: plt.Axes) -> None:
    calibrator, test = load("calibrator.json"), Predictions.load("test.npz")
    curve = risk_coverage(test.labels, calibrator.predict_proba(test.logits))
    at = calibrator.decision_["threshold"]
    ax.plot(curve.threshold, 100 * (1 - curve.risk), label="accuracy of what is decided alone")
    ax.plot(curve.threshold, 100 * curve.coverage, label="share decided alone")
    ax.axhline(90, color="0.6", ls=":")
    ax.axvline(at, color="C3", label=f"chosen: {at:.3f}")
    ax.set(xlabel="decide alone from this confidence", ylabel="%", xlim=(0.25, 1), ylim=(0, 101))
    ax.legend(loc="lower left")


def draw_monitor(axes: np.ndarray, monitor: Monitor) -> None:
    results = monitor.results
    weeks = np.arange(1, len(results) + 1)
    expected = [r.expected_accuracy for r in results]
    low, high = ([100 * getattr(e, end) for e in expected] for end in ("low", "high"))
    axes[0].fill_between(weeks, low, high, alpha=0.25, label="expected without labels")
    axes[0].plot(weeks, [100 * r.accuracy.value for r in results], "o", c="C1", label="measured")
    axes[0].set(ylabel="accuracy, %")
    axes[0].legend()
    for test in TESTS:
        axes[1].plot(weeks, [-np.log10(r.p_values[test]) for r in results], label=test)
    axes[1].axhline(-np.log10(monitor.threshold), color="C3", ls=":", label="alarm")
    axes[1].set(xlabel="week", ylabel="−log10 p, valid at any time")
    axes[1].legend()


def main(images: Path) -> None:
    images = images.resolve()
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        printed = run_page()
        for command, text in printed.items():
            print(f"$ focalcal {command}\n{text}")
        old = Monitor(*_reference())
        for path in sorted(Path("weeks").glob("week-[012]*.npz")):
            week = Predictions.load(path)
            probs = load("calibrator.json").predict_proba(week.logits)
            old.update(path.stem, probs, week.labels)
        for name, size, draw in (
            ("slices", (6, 2.4), draw_slices),
            ("threshold", (6, 3.2), draw_threshold),
        ):
            figure, ax = plt.subplots(figsize=size, layout="constrained")
            draw(ax)
            figure.savefig(images / f"year-{name}.png", dpi=110)
            plt.close(figure)
        figure, axes = plt.subplots(2, 1, figsize=(7, 5), sharex=True, layout="constrained")
        draw_monitor(axes, old)
        figure.savefig(images / "year-monitor.png", dpi=110)
        plt.close(figure)


def _reference() -> tuple[np.ndarray, np.ndarray]:
    test = Predictions.load("test.npz")
    return test.labels, load("calibrator.json").predict_proba(test.logits)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
