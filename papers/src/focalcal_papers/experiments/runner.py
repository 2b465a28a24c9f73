"""Run an experiment: train what is missing, analyse, draw, store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from focalcal.errors import FocalcalError, InputError, MissingExtraError
from focalcal.files import write_text
from focalcal.provenance import provenance
from focalcal_papers.experiments import published
from focalcal_papers.experiments.base import SCALES, Experiment, Finding, Material, Result
from focalcal_papers.experiments.runs import STAND_INS, Run, content_key
from focalcal_papers.experiments.store import Store


class NothingToRun(InputError):
    """None of an experiment's runs could begin: the message says why."""


def reproduce(
    experiment: Experiment,
    scale: str,
    out: Path,
    *,
    data: Path | None = None,
    device: str = "auto",
    tell: Callable[[str], None] = lambda message: None,
) -> Result:
    """Run an experiment at a scale and keep its findings and figure under `out`.

    Runs live in out/runs/SCALE under a hash of their recipe and data: what is finished is not run
    again, what was interrupted continues, and experiments share runs.
    """
    if scale not in SCALES:
        raise InputError(f"expected a scale of {', '.join(SCALES)}; got {scale!r}")
    out = Path(out)
    runs, missing = [], {}
    recipes = experiment.recipes(scale)
    if scale == "smoke" and published.available(data, experiment.files):
        recipes = {}  # real predictions need no stand-in
    for label, settings in recipes.items():
        tell(label)
        try:
            runs.append(_trained(settings, out / "runs" / scale, data, device, experiment))
        except FocalcalError as error:
            if settings["dataset"] in STAND_INS or isinstance(error, MissingExtraError):
                raise
            # Without the advice that follows: it names folders of this machine.
            missing[label] = str(error).split(";")[0]
    if missing and not runs:
        reason = next(iter(missing.values()))
        raise NothingToRun(f"expected data for {experiment.name}, none of its runs began: {reason}")
    tell("analysis")
    material = Material(scale, tuple(runs), data, missing)
    result = analysed(experiment, material)
    store = Store(out)
    store.write(result)
    if result.panels:
        figure_of(result, out)
    return result


def analysed(experiment: Experiment, material: Material) -> Result:
    """The result of an experiment on given material."""
    found = experiment.analyse(material)
    return Result(
        experiment.name,
        material.scale,
        (*found.findings, *(Finding(k, reason=v) for k, v in material.missing.items())),
        found.conclusion,
        comparable=experiment.made_up or not any(run.stand_in for run in material.runs),
        runs=tuple(run.label for run in material.runs),
        provenance=provenance(),
        tables=found.tables,
        panels=found.panels,
    )


def figure_of(result: Result, out: Path) -> Path:
    """Draw the result's panels to out/figures/NAME.SCALE.png."""
    from focalcal_papers.figures import draw, save

    return save(draw(result.panels), Path(out) / "figures" / f"{result.name}.{result.scale}.png")


def _trained(
    settings: dict[str, Any], folder: Path, data: Path | None, device: str, experiment: Experiment
) -> Run:
    from focalcal_papers.training import TrainConfig, load_splits, train

    config = TrainConfig.from_dict(settings)
    splits = load_splits(config, data)
    place = folder / content_key(config.to_dict(), splits.described())
    ended = train(config, data, place, device=device, splits=splits)
    if ended.state != "finished":
        raise FocalcalError(f"expected {place} to finish, got {ended.state}; run it again")
    from focalcal_papers.experiments.fts_next import shift_record

    measure = {"curvature": _curvature, "shift": shift_record}
    for name in experiment.measures:
        if not (place / f"{name}.json").is_file():
            record = measure[name](place, splits, device)
            write_text(place / f"{name}.json", json.dumps(record) + "\n")
    return Run.from_folder(place)


def _curvature(place: Path, splits: Any, device: str) -> dict[str, Any]:
    """Trace and extreme eigenvalues of the cross-entropy's Hessian on 1,000 test samples."""
    from focalcal.curvature import HessianOperator, summarise_curvature
    from focalcal_papers.training import open_run

    session = open_run(place, device=device, splits=splits)
    batches = [(b.inputs, b.targets) for b in session.source.evaluation("test", 1000)]
    operator = HessianOperator(session.model, "ce", batches)
    found = summarise_curvature(operator, rtol=0.1, max_probes=100, tol=1e-2, max_products=60)
    return {"loss": "ce", "split": "test"} | found.record()
