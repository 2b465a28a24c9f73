"""Calibration in TensorBoard, MLflow and Weights & Biases, in model cards and in badges."""

from __future__ import annotations

import json
import math
from typing import Any
from xml.sax.saxutils import escape

from focalcal.bins import Bins
from focalcal.errors import InputError, needing
from focalcal.metrics import Evaluation, StreamedEvaluation
from focalcal.metrics.declare import decimal

METRICS = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "confidence_gap")
"""Metrics that are logged by default."""


def log_evaluation(
    tracker: Any,
    evaluation: Evaluation | StreamedEvaluation,
    step: int,
    *,
    prefix: str = "calibration",
    metrics: tuple[str, ...] = METRICS,
) -> None:
    """Log metrics and the reliability diagram of an evaluation.

    Undefined and infinite values are left out; the intervals of an `Evaluation` become scalars
    such as `ece_low` and `ece_high`.

    tracker: a TensorBoard `SummaryWriter`, the module `mlflow` (inside a run), or the run that
    `wandb.init` returns; prefix: put before every name; metrics: keys of the evaluation.
    """
    numbers = {name: evaluation[name].value for name in metrics}
    if isinstance(evaluation, Evaluation):
        numbers |= {f"{name}_low": evaluation[name].low for name in metrics}
        numbers |= {f"{name}_high": evaluation[name].high for name in metrics}
    scalars = {f"{prefix}/{k}": v for k, v in numbers.items() if math.isfinite(v)}
    figure, name = reliability_figure(evaluation.reliability), f"{prefix}/reliability"
    if hasattr(tracker, "add_scalar"):
        for key, value in scalars.items():
            tracker.add_scalar(key, value, step)
        tracker.add_figure(name, figure, step)
    elif hasattr(tracker, "log_metrics") and hasattr(tracker, "log_figure"):
        tracker.log_metrics(scalars, step=step)
        tracker.log_figure(figure, f"{name}-{step}.png")
    elif hasattr(tracker, "log"):
        import matplotlib.pyplot  # noqa: F401 (wandb looks figures up in it)
        import wandb

        tracker.log({**scalars, name: wandb.Image(figure)}, step=step)
    else:
        raise InputError(
            "expected a SummaryWriter, the module mlflow or a wandb run, got "
            f"{type(tracker).__name__}; log evaluation.to_dict() yourself"
        )


def reliability_figure(bins: Bins) -> Any:
    """A reliability diagram as a matplotlib `Figure`, for any logger that takes one."""
    with needing("matplotlib", "figures", "a reliability diagram"):
        from matplotlib.figure import Figure
    from focalcal.figures import plot_reliability, reliability_panel

    figure = Figure(figsize=(4.2, 3.4), layout="constrained")
    plot_reliability(reliability_panel(bins), figure.subplots())
    return figure


def model_card(
    evaluation: Evaluation, *, model: str, dataset: str, task: str = "text-classification"
) -> str:
    """The calibration block of a Hugging Face model card: metadata, then a table.

    evaluation: of the test set; model and dataset: their names; task: its name on the hub.

    >>> from focalcal.metrics import evaluate
    >>> found = evaluate([0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], resamples=20)
    >>> model_card(found, model="toy", dataset="three rows").splitlines()[1]
    'model-index:'
    """
    rows = {name: evaluation[name] for name in ("accuracy", "nll", "ece", "adaptive_ece")}
    listed = "".join(
        f"    - type: {name}\n      name: {name}\n      value: {e.value:.6g}\n"
        for name, e in rows.items()
        if math.isfinite(e.value)
    )
    table = "".join(
        f"| {name} | {decimal(e.value, 'z.4f')} | "
        f"{'–' if math.isnan(e.low) else f'{e.low:.4f} – {e.high:.4f}'} |\n"
        for name, e in rows.items()
    )
    samples = f"{evaluation.n:,} {'sample' if evaluation.n == 1 else 'samples'}"
    where = " ".join(dataset.split())
    # JSON strings are YAML strings.
    model, data = (json.dumps(text, ensure_ascii=False) for text in (model, dataset))
    return (
        f"---\nmodel-index:\n- name: {model}\n  results:\n"
        f"  - task:\n      type: {task}\n"
        f"    dataset:\n      name: {data}\n      type: {data}\n"
        f"    metrics:\n{listed}---\n\n## Calibration\n\n"
        f"{samples} of {where}, {100 * evaluation.level:g} % intervals.\n\n"
        f"| metric | value | interval |\n|---|---|---|\n{table}"
    )


def badge(evaluation: Evaluation) -> str:
    """A badge for a README as SVG: "ECE 1.2 % ± 0.3", green if calibration is not rejected.

    >>> from focalcal.metrics import evaluate
    >>> badge(evaluate([0, 1], [[0.9, 0.1], [0.2, 0.8]], resamples=20)).startswith("<svg")
    True
    """
    ece = evaluation["ece"]
    half = max(ece.value - ece.low, ece.high - ece.value)
    text = f"{100 * ece.value:.1f} % ± {100 * half:.1f}"
    left, right = 38, 7 * len(text) + 14
    colour = "#b26a00" if evaluation.miscalibrated else "#2e7d32"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="ECE {escape(text)}"><title>ECE {escape(text)}</title>'
        f'<rect width="{left}" height="20" fill="#555"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" '
        f'font-size="11"><text x="{left / 2}" y="14">ECE</text>'
        f'<text x="{left + right / 2}" y="14">{escape(text)}</text></g></svg>\n'
    )
