"""`focalcal decide`: above which confidence may the model decide alone?"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from focalcal.cli import _inputs, app, options, terminal
from focalcal.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from focalcal.decisions import Cost
    from focalcal.metrics import Estimate

SAVED = ("goal", "value", "threshold", "level", "n")
"""The fields of a threshold that a calibrator file keeps."""


@app.command(example="focalcal decide calibrated.npz --target-accuracy 0.99")
def decide(
    file: Annotated[Path, "Labelled predictions that nothing was fitted on."],
    inputs: _inputs.Inputs,
    target_accuracy: Annotated[float | None, "Goal: accuracy of samples decided alone."] = None,
    max_error: Annotated[float | None, "Goal: share of all decided wrongly."] = None,
    review_budget: Annotated[float | None, "Goal: share of all left to a person."] = None,
    costs: Annotated[str | None, "Costs by class: .csv or '[[0,1],[9,0]]'."] = None,
    abstain_cost: Annotated[float | None, "Cost of asking a person."] = None,
    level: Annotated[float, "Probability of the guarantee."] = 0.95,
    calibrator: options.ApplyFirst = None,
    save: Annotated[bool, "Save the threshold with the calibrator."] = False,
    floor: options.Floor = None,
) -> terminal.Result:
    """Choose a confidence threshold for a goal, or decide by costs.

    The model decides alone where its confidence reaches the threshold; all other samples are left
    to a person.
    """
    from focalcal import calibrators, decisions

    goals = {
        "target_accuracy": target_accuracy,
        "max_error": max_error,
        "review_budget": review_budget,
    }
    priced = costs is not None or abstain_cost is not None
    aimed = any(value is not None for value in goals.values())
    if priced and aimed:
        raise InputError("expected one goal or costs, got both")
    if not (priced or aimed):
        raise InputError(
            "expected --target-accuracy, --max-error, --review-budget, or --costs and "
            "--abstain-cost, got none"
        )
    if save and (calibrator is None or priced):
        raise InputError("expected --save with --calibrator and a goal that gives a threshold")
    fitted = None if calibrator is None else calibrators.load(calibrator)
    given, probs = inputs.calibrated(file, fitted, floor)
    if priced:
        settings = {"abstain_cost": abstain_cost, "y_true": given.labels, "level": level}
        cost = decisions.expected_cost(probs, _read_costs(costs), **settings)
        return terminal.Result(dataclasses.asdict(cost), _cost_lines(cost))
    found = decisions.threshold(given.labels, probs, **goals, level=level)
    chosen = f"Chosen on {found.n:,} samples; it holds for new samples from the same distribution."
    more = chosen if found.found else "Use more samples, or a weaker goal."
    lines = [found.rule, f"Guarantee: {found.guarantee}.", more]
    if save and found.found:
        fitted.decision_ = {name: getattr(found, name) for name in SAVED}
        fitted.save(calibrator)
        lines.append(f"Saved in {calibrator}.")
    return terminal.Result(dataclasses.asdict(found) | {"guarantee": found.guarantee}, lines)


def _read_costs(text: str | None) -> Any:
    import numpy as np

    if text is None:
        return None
    try:
        if not text.lstrip().startswith("["):
            return np.loadtxt(text, delimiter=",", ndmin=2, encoding="utf-8-sig")
        return np.asarray(json.loads(text), dtype=np.float64)
    except (ValueError, TypeError, OSError) as error:
        raise FileFormatError(
            "expected --costs as a .csv file of numbers or as JSON rows such as [[0,1],[9,0]], "
            f"got {text}: {error}"
        ) from error


def _cost_lines(cost: Cost) -> list[str]:
    lines = [
        f"Mean cost {_number(cost.measured)}, expected {_number(cost.expected)}; "
        f"{100 * cost.decided.value:.1f} % decided alone.",
        f"Guarantee: mean cost of at most {cost.at_most:.4g}, with probability "
        f"{100 * cost.level:g} % (empirical Bernstein bound).",
    ]
    if cost.difference.low > 0 or cost.difference.high < 0:
        lines.append(
            f"Measured − expected is {_number(cost.difference)}: the probabilities are not "
            "calibrated for these costs; fit a calibrator first."
        )
    return lines


def _number(e: Estimate) -> str:
    return f"{e.value:.4g}" + ("" if math.isnan(e.low) else f" ({e.low:.4g} – {e.high:.4g})")
